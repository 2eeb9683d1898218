"""The same prompts in two runs: who wins, and completions side by side."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import Http404, HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of
from dashboard.api.paging import Cursor, Limit, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.resources.groups import CompletionOut, completion_fields
from dashboard.api.schemas import LARGEST_ID, Real, Step, StepBound
from dashboard.insights.duels.choice import read_choice, read_sides
from dashboard.insights.duels.meetings import Meeting, Meetings, find_meetings
from dashboard.insights.duels.pairs import (
    Pair,
    RuleDelta,
    Side,
    align_pairs,
    compare_rules,
)
from dashboard.insights.duels.wins import (
    Duel,
    make_duel,
    read_duels,
    sort_duels,
    summarise,
)
from dashboard.runs.models import Run
from dashboard.samples.completion import Completion

router = Router(tags=["Compare"], auth=READ)
RunId = Annotated[int, Query(..., ge=1, le=LARGEST_ID, examples=[7])]
OtherId = Annotated[int, Query(..., ge=1, le=LARGEST_ID, examples=[8])]


def two_runs(team: Team, a: int, b: int, *, place: str = "query") -> tuple[Run, Run]:
    """422 for one run twice; 404 for another team's."""
    if a == b:
        raise refuse_field(f"{place}.b", f"Name two runs; got run {a} twice.")
    runs = read_choice(team, query_of({"runs": f"{a},{b}", "a": a, "b": b})).runs
    assert runs, "two runs of the team were named"
    return runs


def meet(
    runs: tuple[Run, Run], prompt: int, step: int | None
) -> tuple[Meeting, tuple[Side, Side], Meetings]:
    """404 says which of the two has not sampled it."""
    meetings = find_meetings(runs, step)
    meeting = meetings.of(prompt, step)
    sides = read_sides(runs, meeting) if meeting else None
    if meeting is None or sides is None:
        raise Http404(meetings.why_not(prompt, runs))
    return meeting, sides, meetings


class DuelOut(Schema):
    """One prompt, at the same step of both runs or at two that are near."""

    prompt_index: int = Field(description="Of run a.", examples=[17])
    other_prompt_index: int = Field(description="Of run b.", examples=[17])
    step: int = Field(examples=[40])
    other_step: int = Field(examples=[40])
    reward_mean: Real = Field(examples=[0.75])
    other_reward_mean: Real = Field(examples=[0.5])
    difference: Real = Field(examples=[0.25])
    win_rate: Real = Field(
        description="How often a completion of a gets more reward than one of b; a tie "
        "is half.",
        examples=[0.62],
    )


def _duel(duel: Duel) -> DuelOut:
    meeting = duel.meeting
    return DuelOut(
        prompt_index=meeting.prompts[0],
        other_prompt_index=meeting.prompts[1],
        step=meeting.steps[0],
        other_step=meeting.steps[1],
        reward_mean=duel.means[0],
        other_reward_mean=duel.means[1],
        difference=duel.delta,
        win_rate=duel.rate,
    )


class DuelsOut(Schema):
    items: list[DuelOut]
    next_cursor: str | None
    total: int = Field(description="Prompts that are listed.", examples=[120])
    num_common: int = Field(description="That both sampled.", examples=[120])
    matched: str = Field(description="How, where it is not by number.")
    win_rate: Real = Field(description="Over all prompts, each counted once.")
    low: Real = Field(description="Of its 95 % interval, over prompts.")
    high: Real


@router.get("/prompts", response=DuelsOut, summary="Compare two runs by prompt")
def compare_prompts(
    request: HttpRequest,
    a: RunId,
    b: OtherId,
    cursor: Cursor,
    limit: Limit,
    step: StepBound,
    sort: Annotated[
        Literal["prompt", "rate", "-rate", "delta", "-delta"], Query("prompt")
    ],
) -> DuelsOut:
    """Each prompt that both sampled, at the equal step nearest to `step`."""
    runs = two_runs(access_of(request).team, a, b)
    meetings = find_meetings(runs, step)
    duels = read_duels(runs, meetings.found)
    start = read_cursor(cursor) if cursor else 0
    shown = sort_duels(duels, sort)[start : start + limit]
    end = start + len(shown)
    summary = summarise(duels)
    low, high = summary.interval or (None, None)
    return DuelsOut(
        items=[_duel(each) for each in shown],
        next_cursor=write_cursor(end) if shown and end < len(duels) else None,
        total=len(duels),
        num_common=meetings.num_common,
        matched=meetings.matching.said,
        win_rate=summary.rate,
        low=low,
        high=high,
    )


class DuelRuleOut(Schema):
    name: str = Field(examples=["answer"])
    mean: Real = Field(description="Of run a, before its weight.", examples=[0.5])
    other_mean: Real = Field(examples=[0.25])
    difference: Real = Field(examples=[0.25])


def _rule(rule: RuleDelta) -> DuelRuleOut:
    mean, other = rule.means
    return DuelRuleOut(
        name=rule.name, mean=mean, other_mean=other, difference=rule.delta
    )


class DuelPairOut(Schema):
    number: int = Field(examples=[1])
    a: CompletionOut | None
    b: CompletionOut | None
    difference: Real


class DuelDetail(DuelOut):
    prompt: str = Field(examples=["What is 17 + 1?"])
    answer: str | None = Field(examples=["18"])
    rules: list[DuelRuleOut]
    pairs: list[DuelPairOut]
    equal_steps: list[int] = Field(description="At which both sampled it.")


@router.get(
    "/prompts/{prompt_index}", response=DuelDetail, summary="Compare one prompt"
)
def compare_prompt(
    request: HttpRequest,
    prompt_index: Step,
    a: RunId,
    b: OtherId,
    step: StepBound,
    align: Annotated[
        Literal["rank", "sampled"],
        Query("rank", description="rank: the best beside the best."),
    ],
) -> DuelDetail:
    """Its completions in both runs, side by side; numbered as run a numbers it."""
    runs = two_runs(access_of(request).team, a, b)
    meeting, (ours, theirs), meetings = meet(runs, prompt_index, step)
    duel = make_duel(meeting, ours.rewards, theirs.rewards)
    return DuelDetail(
        **_duel(duel).model_dump(),
        prompt=ours.group.prompt,
        answer=ours.group.answer,
        rules=[_rule(each) for each in compare_rules(ours, theirs)],
        pairs=[
            _pair(each, ours, theirs) for each in align_pairs(ours, theirs, by=align)
        ],
        equal_steps=meetings.equal_steps(meeting),
    )


def _pair(pair: Pair, ours: Side, theirs: Side) -> DuelPairOut:
    return DuelPairOut(
        number=pair.number,
        a=_completion(pair.ours, ours),
        b=_completion(pair.theirs, theirs),
        difference=pair.delta,
    )


def _completion(completion: Completion | None, side: Side) -> CompletionOut | None:
    if completion is None:
        return None
    return CompletionOut(**completion_fields(completion, side.group.rule_names))
