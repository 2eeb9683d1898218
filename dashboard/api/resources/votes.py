"""Blind votes between completions of two runs."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import Http404, HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, Access, access_of
from dashboard.api.resources.duels import OtherId, RunId, meet, two_runs
from dashboard.api.schemas import LARGEST_STEP, IdIn, Input, Real, StepBound, StepIn
from dashboard.insights.duels.votes import (
    Ballot,
    Tally,
    cast,
    draw_ballot,
    find_choice,
    take_back,
    tally,
)
from dashboard.runs.models import Run

router = Router(tags=["Compare"], auth=READ)
Place = Annotated[int, Query(0, ge=0, le=LARGEST_STEP)]
Seed = Annotated[int, Query(1, ge=0, le=LARGEST_STEP)]
PromptIndex = Annotated[int, Query(..., ge=0, le=LARGEST_STEP, examples=[17])]


class VoterOut(Schema):
    username: str = Field(examples=["alice"])
    a: int = Field(examples=[4])
    b: int = Field(examples=[2])
    ties: int = Field(examples=[1])


class TallyOut(Schema):
    a: int = Field(description="Votes for run a.", examples=[4])
    b: int = Field(examples=[2])
    ties: int = Field(examples=[1])
    share: Real = Field(description="Of run a, without ties.", examples=[0.67])
    low: Real
    high: Real
    by_voter: list[VoterOut]


def _tally(found: Tally) -> TallyOut:
    low, high = found.interval or (None, None)
    return TallyOut(
        a=found.wins[0],
        b=found.wins[1],
        ties=found.ties,
        share=found.share,
        low=low,
        high=high,
        by_voter=[
            VoterOut(username=name, a=ours, b=theirs, ties=ties)
            for name, ours, theirs, ties in found.by_voter
        ],
    )


@router.get("/votes", response=TallyOut, summary="Count the votes between two runs")
def votes(request: HttpRequest, a: RunId, b: OtherId) -> TallyOut:
    """Everybody's of the team, whatever the prompt."""
    team = access_of(request).team
    return _tally(tally(team, two_runs(team, a, b)))


class BallotOut(Schema):
    """Two completions; whose they are is told once you have voted."""

    prompt: str = Field(examples=["What is 17 + 1?"])
    step: int = Field(examples=[40])
    left: str = Field(examples=["<answer>18</answer>"])
    right: str = Field(examples=["18"])
    num_pairs: int = Field(description="Of this prompt and step.", examples=[8])
    choice: str | None = Field(description="left, right or tie: what you chose.")
    left_run_id: int | None = Field(description="null until you have voted.")
    right_run_id: int | None


@router.get("/ballot", response=BallotOut, summary="Draw two completions to vote on")
def ballot(
    request: HttpRequest,
    a: RunId,
    b: OtherId,
    prompt_index: PromptIndex,
    step: StepBound,
    pair: Place,
    seed: Seed,
) -> BallotOut:
    """Of one prompt, at the step where both sampled it; the seed shuffles them."""
    access = access_of(request)
    runs = two_runs(access.team, a, b)
    return _draw(access, runs, prompt_index, step, pair, seed)[0]


def _draw(
    access: Access,
    runs: tuple[Run, Run],
    prompt: int,
    step: int | None,
    pair: int,
    seed: int,
) -> tuple[BallotOut, Ballot]:
    meeting, sides, _ = meet(runs, prompt, step)
    drawn = draw_ballot(*sides, number=pair, seed=seed)
    if drawn is None:
        raise Http404(f"Prompt {prompt} has no pair {pair}.")
    chosen = find_choice(access.user, drawn)
    shown = BallotOut(
        prompt=sides[0].group.prompt,
        step=meeting.steps[0],
        left=drawn.left.text,
        right=drawn.right.text,
        num_pairs=min(len(side.completions) for side in sides),
        choice=chosen,
        left_run_id=drawn.left_run.pk if chosen else None,
        right_run_id=drawn.right_run.pk if chosen else None,
    )
    return shown, drawn


class VoteIn(Input):
    a: IdIn = Field(examples=[7])
    b: IdIn = Field(examples=[8])
    prompt_index: StepIn = Field(examples=[17])
    step: StepIn | None = None
    pair: StepIn = 0
    seed: StepIn = 1
    choice: Literal["left", "right", "tie", "none"] = Field(
        description="none takes the vote back.", examples=["left"]
    )


@router.post("/votes", response=BallotOut, auth=WRITE, summary="Vote")
def vote(request: HttpRequest, payload: VoteIn) -> BallotOut:
    """On the two completions that a ballot with the same numbers shows."""
    access = access_of(request)
    runs = two_runs(access.team, payload.a, payload.b, place="body")
    place = (payload.prompt_index, payload.step, payload.pair, payload.seed)
    _, drawn = _draw(access, runs, *place)
    if payload.choice == "none":
        take_back(access.user, drawn)
    else:
        cast(access.team, access.user, drawn, payload.choice)
    return _draw(access, runs, *place)[0]
