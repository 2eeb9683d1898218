"""One prompt in two runs, side by side."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.insights.duels.choice import Choice, read_choice, read_sides
from dashboard.insights.duels.meetings import MAX_PROMPTS, Meeting, Meetings
from dashboard.insights.duels.pairs import align_pairs, compare_rules
from dashboard.insights.duels.wins import (
    Duel,
    make_duel,
    read_duels,
    sort_duels,
    summarise,
)
from dashboard.insights.marks import mark_runs
from dashboard.runs.models import Run
from dashboard.samples.models import Group
from dashboard.samples.prompts import read_snippets

PROMPTS_PER_PAGE = 20


@require_safe
def compare_prompt(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    choice = read_choice(team_, request.GET)
    view = {name: choice.form.value(name) for name in choice.form.fields}
    context = {"team": team_, "choice": choice, "form": choice.form, "view": view}
    if choice.runs:
        context |= _compare(choice, choice.runs)
    return render(request, "insights/prompt.html", context)


def _compare(choice: Choice, runs: tuple[Run, Run]) -> dict[str, Any]:
    meetings = choice.meet()
    duels = read_duels(runs, meetings.found)
    ordered = sort_duels(duels, choice.form.value("sort"))
    page = Paginator(ordered, PROMPTS_PER_PAGE).get_page(choice.form.value("page"))
    marks = mark_runs(choice.selection.ids)
    return {
        "a": runs[0],
        "b": runs[1],
        "marks": [marks[run.pk] for run in runs],
        "meetings": meetings,
        "max_prompts": MAX_PROMPTS,
        "summary": summarise(duels),
        "page": page,
        "rows": _with_texts(runs[0], list(page)),
        **_prompt(choice, runs, meetings),
    }


def _with_texts(run: Run, duels: list[Duel]) -> list[tuple[Duel, str]]:
    """With what each prompt asks. Two queries."""
    prompts = [duel.meeting.prompts[0] for duel in duels]
    groups = Group.objects.current().filter(
        run=run,
        prompt_index__in=prompts,
        step__in=[duel.meeting.steps[0] for duel in duels],
    )
    texts = read_snippets(run, groups.only("prompt_index", "prompt"))
    return [(duel, texts.get(at, "")) for duel, at in zip(duels, prompts, strict=True)]


def _prompt(
    choice: Choice, runs: tuple[Run, Run], meetings: Meetings
) -> dict[str, Any]:
    prompt = choice.form.value("prompt")
    if prompt is None:
        return {}
    meeting = meetings.of(prompt, choice.form.value("step"))
    sides = read_sides(runs, meeting) if meeting else None
    if meeting is None or sides is None:
        return {"reason": meetings.why_not(prompt, runs)}
    ours, theirs = sides
    return {
        "meeting": meeting,
        "sides": sides,
        "duel": make_duel(meeting, ours.rewards, theirs.rewards),
        "rules": compare_rules(ours, theirs),
        "pairs": align_pairs(ours, theirs, by=choice.form.value("align")),
        **_neighbours(meetings.equal_steps(meeting), meeting),
    }


def _neighbours(steps: list[int], meeting: Meeting) -> dict[str, Any]:
    """The equal steps before and after the one that is shown."""
    at = meeting.steps[0]
    return {
        "num_equal": len(steps),
        "before": max((step for step in steps if step < at), default=None),
        "after": min((step for step in steps if step > at), default=None),
    }
