"""One prompt of a run: its learning curve, and all that was answered to it."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.paging import Cursor, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.resources.completions import FoundCompletion, found_completion
from dashboard.api.resources.prompts import LearntPromptOut, prompt_fields
from dashboard.api.schemas import Id, Step, StepBound
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.learning_curve import Point, make_points
from dashboard.samples.pass_shares import tally
from dashboard.samples.prompt_completions import read_completions_of
from dashboard.samples.prompt_lines import make_lines
from dashboard.samples.prompt_visits import (
    VISIT,
    Visits,
    find_span,
    newest_group,
    read_visits,
)

router = Router(tags=["Prompts"], auth=READ)
NumVisits = Annotated[int, Query(3, ge=1, le=1_000_000)]


class VisitOut(Schema):
    """A group of the prompt; of many several together, from one step to another."""

    first_step: int = Field(examples=[40])
    last_step: int = Field(examples=[40])
    num_visits: int = Field(examples=[1])
    num_scored: int = Field(examples=[8])
    num_right: int = Field(examples=[6])
    reward_mean: float | None = Field(examples=[0.75])
    reward_std: float | None = Field(examples=[0.43])


def _visit(point: Point) -> VisitOut:
    return VisitOut(
        first_step=point.first,
        last_step=point.last,
        num_visits=point.num_visits,
        num_scored=point.num_scored,
        num_right=point.num_right,
        reward_mean=point.mean,
        reward_std=point.std,
    )


class LearntPromptDetail(LearntPromptOut):
    prompt: str = Field(
        description="As it was sampled last.", examples=["What is 17 + 1?"]
    )
    answer: str | None = Field(examples=["18"])
    num_completions: int = Field(examples=[96])
    curve: list[VisitOut]


@router.get(
    "/{run_id}/prompts/{prompt_index}",
    response=LearntPromptDetail,
    summary="Look at a prompt",
)
def run_prompt(
    request: HttpRequest,
    run_id: Id,
    prompt_index: Step,
    visits: NumVisits,
    first_step: StepBound,
    last_step: StepBound,
) -> LearntPromptDetail:
    """Its class and its learning curve, over the steps that are asked for."""
    run = get_run(access_of(request).team, run_id)
    newest = newest_group(run, prompt_index)
    seen = _visits(run, prompt_index, first_step, last_step)
    fields: dict[str, Any] = dict(NOTHING, prompt_index=prompt_index)
    if len(seen):
        tallies = tally(seen, num_last=visits)
        fields = prompt_fields(make_lines(run, list(tallies), seen)[0])
    return LearntPromptDetail(
        **fields,
        prompt=newest.prompt,
        answer=newest.answer,
        num_completions=int(seen["num_completions"].sum()),
        curve=[_visit(point) for point in make_points(seen)],
    )


# Of a prompt that these steps did not sample.
NOTHING = {
    "text": None,
    "kind": "unscored",
    "num_seen": 0,
    "num_scored": 0,
    "num_right": 0,
    "change": None,
    "last_step": 0,
    "solved_at": None,
    "forgotten_at": None,
}


def _visits(run: Run, prompt: int, first: int | None, last: int | None) -> Visits:
    if first is not None and last is not None and first > last:
        said = f"No step is at least {first} and at most {last}. Swap the two."
        raise refuse_field("query.last_step", said)
    span = find_span(run, first=first, last=last)
    if span is None:
        return np.empty(0, VISIT)
    return read_visits(run, span, prompt=prompt)


class PromptCompletions(Schema):
    items: list[FoundCompletion]
    next_cursor: str | None
    total: int = Field(examples=[96])


@router.get(
    "/{run_id}/prompts/{prompt_index}/completions",
    response=PromptCompletions,
    summary="Read all completions of a prompt",
)
def prompt_completions(
    request: HttpRequest,
    run_id: Id,
    prompt_index: Step,
    cursor: Cursor,
    first_step: StepBound,
    last_step: StepBound,
) -> PromptCompletions:
    """Twenty at a time, the newest step's first."""
    run = get_run(access_of(request).team, run_id)
    newest_group(run, prompt_index)
    seen = _visits(run, prompt_index, first_step, last_step)
    number = read_cursor(cursor) if cursor else 1
    page, found = read_completions_of(run, prompt_index, seen, number=max(1, number))
    is_last = page.number >= page.num_pages
    return PromptCompletions(
        items=[found_completion(each) for each in found],
        next_cursor=None if is_last else write_cursor(page.number + 1),
        total=page.num_found,
    )
