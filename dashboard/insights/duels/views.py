"""One prompt in two runs: side by side, and as a blind vote."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db.models import F
from django.db.models.functions import Left
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import get_membership_for, get_team
from dashboard.accounts.models import Membership
from dashboard.insights.duels.choice import Choice, read_choice, read_sides
from dashboard.insights.duels.meetings import MAX_PROMPTS, Meeting, Meetings
from dashboard.insights.duels.pairs import align_pairs, compare_rules
from dashboard.insights.duels.votes import (
    Ballot,
    cast,
    draw_ballot,
    find_choice,
    take_back,
    tally,
)
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

PROMPTS_PER_PAGE = 20
NUM_CHARS = 160  # of a prompt in the table


@require_safe
def compare_prompt(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    choice = read_choice(team_, request.GET)
    view = {name: choice.form.value(name) for name in choice.form.fields}
    context = {"team": team_, "choice": choice, "form": choice.form, "view": view}
    if choice.runs:
        context |= _compare(choice, choice.runs)
        context["votes"] = tally(team_, choice.runs)
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
    """With the beginning of each prompt. One query."""
    keys = [(d.meeting.prompts[0], d.meeting.steps[0]) for d in duels]
    groups = Group.objects.current().filter(
        run=run,
        prompt_index__in=[prompt for prompt, _ in keys],
        step__in=[step for _, step in keys],
    )
    begun = groups.annotate(begin=Left(F("prompt"), NUM_CHARS))
    texts = {
        (p, s): text
        for p, s, text in begun.values_list("prompt_index", "step", "begin")
    }
    return [(duel, texts.get(key, "")) for duel, key in zip(duels, keys, strict=True)]


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


@require_http_methods(["GET", "HEAD", "POST"])
def compare_vote(request: HttpRequest, team: str) -> HttpResponse:
    """A GET shows a pair of completions, a POST votes and comes back to it."""
    membership = get_membership_for(request, team)
    choice = read_choice(membership.team, request.GET)
    context: dict[str, Any] = {
        "team": membership.team,
        "choice": choice,
        "form": choice.form,
        "can_write": membership.can_write,
    }
    if choice.runs is None:
        return render(request, "insights/vote.html", context)
    meetings = choice.meet()
    meeting = _meeting(choice, meetings)
    sides = read_sides(choice.runs, meeting) if meeting else None
    if meeting is None or sides is None:
        return render(request, "insights/vote.html", context)
    number, seed = choice.form.value("pair"), choice.form.value("seed")
    ballot = draw_ballot(*sides, number=number, seed=seed)
    if ballot is None:
        raise Http404(f"Prompt {meeting.prompts[0]} has no pair {number}.")
    if request.method == "POST":
        return _vote(request, membership, ballot)
    shown = {"meeting": meeting, "sides": sides, "ballot": ballot, "number": number}
    context |= shown | _chosen(membership, ballot, choice.runs)
    context |= _next(meetings, meeting, number, min(len(s.completions) for s in sides))
    return render(request, "insights/vote.html", context)


def _meeting(choice: Choice, meetings: Meetings) -> Meeting | None:
    prompt = choice.form.value("prompt")
    if prompt is None:
        return meetings.found[0] if meetings.found else None
    return meetings.of(prompt, choice.form.value("step"))


def _vote(request: HttpRequest, membership: Membership, ballot: Ballot) -> HttpResponse:
    if "undo" in request.POST:
        take_back(membership.user, ballot)
    else:
        try:
            cast(
                membership.team,
                membership.user,
                ballot,
                request.POST.get("choice", ""),
            )
        except ValueError as error:
            return HttpResponse(str(error), status=400, content_type="text/plain")
    return redirect(f"{request.path}?{request.GET.urlencode()}")


def _chosen(
    membership: Membership, ballot: Ballot, runs: tuple[Run, Run]
) -> dict[str, Any]:
    """Whose the completions are is told once the person has voted."""
    chosen = find_choice(membership.user, ballot)
    if chosen is None:
        return {"chosen": None}
    return {
        "chosen": chosen,
        "votes": tally(membership.team, runs),
        "a": runs[0],
        "b": runs[1],
    }


def _next(
    meetings: Meetings, meeting: Meeting, number: int, num_pairs: int
) -> dict[str, Any]:
    """The next pair of this prompt, else the first of the next one."""
    if number + 1 < num_pairs:
        return {"next": (meeting.prompts[0], meeting.steps[0], number + 1)}
    after = [m for m in meetings.found if m.prompts[0] > meeting.prompts[0]]
    following = (after[0].prompts[0], after[0].steps[0], 0) if after else None
    return {"next": following, "num_pairs": num_pairs}
