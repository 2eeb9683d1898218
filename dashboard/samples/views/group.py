from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.queries import get_run
from dashboard.samples.breakdown import rank_completions, sort_standings
from dashboard.samples.forms import GroupViewForm
from dashboard.samples.recipes import rule_weights, step_recipe
from dashboard.samples.reward_log import notes_of
from dashboard.samples.visits import get_group, neighbours_in_step, read_visits


@require_safe
def group(
    request: HttpRequest, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    found = get_group(run, step, prompt)
    form = GroupViewForm.read(request.GET)
    completions = list(found.completions.order_by("position"))
    recipe = step_recipe(run, step)
    weights = rule_weights(run, step)
    standings = rank_completions(found, completions, weights, recipe)
    before, after = neighbours_in_step(found)
    notes = notes_of(found)
    ordered = sort_standings(standings, form.value("sort"))
    context = {
        "team": team_,
        "run": run,
        "tab": "groups",
        "group": found,
        "form": form,
        "sort": form.value("sort"),
        "recipe": recipe,
        "standings": [(s, notes.get(s.completion.position, [])) for s in ordered],
        "num_notes_kept": sum(len(each) for each in notes.values()),
        "num_truncated": sum(c.end_reason == "length" for c in completions),
        "num_distinct": len({c.text for c in completions}),
        "visits": read_visits(found),
        "group_before": before,
        "group_after": after,
    }
    return render(request, "samples/group.html", context)
