from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for
from dashboard.runs.queries import get_run
from dashboard.samples.annotations import Marks, read_marks, suggest_tags
from dashboard.samples.forms import GroupViewForm
from dashboard.samples.groups import get_group, neighbours_in_step, read_visits
from dashboard.samples.models import Completion, GroupTokens, RuleNote
from dashboard.samples.rendering import Rendered, render_texts
from dashboard.samples.rewards import (
    Standing,
    find_base,
    rank_completions,
    rule_weights,
    sort_standings,
    step_recipe,
)
from dashboard.samples.rule_logs import notes_of
from dashboard.samples.tokens import find_near, which_are_kept

# Of all completions' texts together: beyond, a browser has no use for the page.
MAX_CHARS = 4 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What the page shows of one completion."""

    standing: Standing
    text: str  # the first of it, where the group's texts are very long
    notes: list[RuleNote]
    rendered: Rendered | None  # as Markdown, where that is asked for
    marks: Marks

    @property
    def completion(self) -> Completion:
        return self.standing.completion


@require_safe
def group(
    request: HttpRequest, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    found = get_group(run, step, prompt)
    form = GroupViewForm.read(request.GET)
    completions = found.completions
    recipe = step_recipe(run, step)
    weights = rule_weights(run, step)
    standings = rank_completions(found, completions, weights, recipe)
    before, after = neighbours_in_step(found)
    notes = notes_of(found)
    ordered = sort_standings(standings, form.value("sort"))
    view = form.value("view")
    texts = [standing.completion.text for standing in ordered]
    share = _share_of_page(texts)
    rendered = render_texts(texts) if view == "rendered" else [None] * len(texts)
    marks = read_marks([found.pk], membership.user)
    context = {
        "team": membership.team,
        "run": run,
        "tab": "groups",
        "group": found,
        "form": form,
        "view": view,
        "color": form.value("color"),
        "is_stacked": form.value("layout") == "stacked",
        "recipe": recipe,
        "cards": [
            Card(
                standing=standing,
                text=standing.completion.text[:share],
                notes=notes.get(standing.completion.position, []),
                rendered=html,
                marks=marks.get((found.pk, standing.completion.position), Marks()),
            )
            for standing, html in zip(ordered, rendered, strict=True)
        ],
        "marks": marks.get((found.pk, None), Marks()),
        "are_tokens_kept": view == "tokens"
        and GroupTokens.objects.filter(group=found).exists(),
        "which_tokens": lambda: which_are_kept(run),
        "near": lambda: find_near(found),
        "team_tags": suggest_tags(membership.team),
        "can_write": membership.can_write,
        "base": find_base(standings) if form.shows_diff else None,
        "num_notes_kept": sum(len(each) for each in notes.values()),
        "num_truncated": _num_truncated(completions),
        "num_distinct": len({c.text for c in completions}),
        "visits": read_visits(found),
        "group_before": before,
        "group_after": after,
    }
    return render(request, "samples/group.html", context)


def _share_of_page(texts: Sequence[str]) -> int | None:
    """So many characters of each are shown; None: all of them."""
    is_much = sum(map(len, texts)) > MAX_CHARS
    return MAX_CHARS // len(texts) if is_much else None


def _num_truncated(completions: Sequence[Completion]) -> int | None:
    """None: an imported run does not tell how they ended."""
    ends = [c.end_reason for c in completions]
    return None if "unknown" in ends else ends.count("length")
