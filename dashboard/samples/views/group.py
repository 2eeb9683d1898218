from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.queries import get_run
from dashboard.samples.breakdown import (
    Standing,
    find_base,
    rank_completions,
    sort_standings,
)
from dashboard.samples.forms import GroupViewForm
from dashboard.samples.recipes import rule_weights, step_recipe
from dashboard.samples.rendering import Rendered, render_texts
from dashboard.samples.reward_log import notes_of
from dashboard.samples.visits import get_group, neighbours_in_step, read_visits


def _render(view: str, standings: Sequence[Standing]) -> Sequence[Rendered | None]:
    if view != "rendered":
        return [None] * len(standings)
    return render_texts([standing.completion.text for standing in standings])


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
    view = form.value("view")
    context = {
        "team": team_,
        "run": run,
        "tab": "groups",
        "group": found,
        "form": form,
        "view": view,
        "color": form.value("color"),
        "is_stacked": form.value("layout") == "stacked",
        "recipe": recipe,
        "standings": [
            (s, notes.get(s.completion.position, []), rendered)
            for s, rendered in zip(ordered, _render(view, ordered), strict=True)
        ],
        "base": find_base(standings) if form.shows_diff else None,
        "num_notes_kept": sum(len(each) for each in notes.values()),
        "num_truncated": sum(c.end_reason == "length" for c in completions),
        "num_distinct": len({c.text for c in completions}),
        "visits": read_visits(found),
        "group_before": before,
        "group_after": after,
    }
    return render(request, "samples/group.html", context)
