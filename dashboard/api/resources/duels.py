"""The same prompts in two runs, and who wins."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of
from dashboard.api.paging import Cursor, Limit, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.schemas import LARGEST_ID, Real, StepBound
from dashboard.insights.duels.choice import read_choice
from dashboard.insights.duels.meetings import find_meetings
from dashboard.insights.duels.wins import (
    Duel,
    read_duels,
    sort_duels,
    summarise,
)
from dashboard.runs.models import Run

router = Router(tags=["Compare"], auth=READ)
RunId = Annotated[int, Query(..., ge=1, le=LARGEST_ID, examples=[7])]
OtherId = Annotated[int, Query(..., ge=1, le=LARGEST_ID, examples=[8])]


def _two_runs(team: Team, a: int, b: int) -> tuple[Run, Run]:
    """422 for one run twice; 404 for another team's."""
    if a == b:
        raise refuse_field("query.b", f"Name two runs; got run {a} twice.")
    runs = read_choice(team, query_of({"runs": f"{a},{b}", "a": a, "b": b})).runs
    assert runs, "two runs of the team were named"
    return runs


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
    runs = _two_runs(access_of(request).team, a, b)
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
