"""What each prompt of a run learnt."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.filters import query_of, refuse_errors
from dashboard.api.paging import Cursor, Limit, read_cursor, write_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.schemas import Id, Step, StepBound
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.learning_curve import Point, make_points
from dashboard.samples.pass_shares import Kind, tally
from dashboard.samples.prompt_forms import (
    CLASS_WORDS,
    PROMPT_CHOICES,
    PROMPT_SORTS,
    PromptFilterForm,
)
from dashboard.samples.prompt_lines import PromptLine, make_lines
from dashboard.samples.prompt_tables import Found, find_prompts
from dashboard.samples.prompt_visits import (
    VISIT,
    Visits,
    find_span,
    newest_group,
    read_visits,
)

router = Router(tags=["Prompts"], auth=READ)
ABOUT_WHICH = "; ".join(f"{key}: {words}" for key, words in PROMPT_CHOICES)
ABOUT_SORT = "; ".join(f"{key}: {words}" for key, words in PROMPT_SORTS)
Percent = Annotated[float | None, Query(None, ge=0, le=100)]


class LearntPromptOut(Schema):
    prompt_index: int = Field(
        description="The row of the dataset version.", examples=[17]
    )
    text: str | None = Field(
        description="Of a chat, what its messages say.", examples=["What is 17 + 1?"]
    )
    kind: Kind = Field(
        description="By its last visits: never, solved, forgotten, oscillating or "
        "unscored.",
        examples=["solved"],
    )
    num_seen: int = Field(description="Groups of it.", examples=[12])
    num_scored: int = Field(description="Completions of the last visits.", examples=[8])
    num_right: int = Field(description="Of those.", examples=[6])
    change: float | None = Field(
        description="Percentage points since the first visits.", examples=[50.0]
    )
    last_step: int = Field(examples=[118])
    solved_at: int | None = Field(description="Step of the first right visit.")
    forgotten_at: int | None = Field(
        description="Step of the first visit after the last right one."
    )


def prompt_fields(line: PromptLine) -> dict[str, Any]:
    names = ("kind", "num_seen", "num_scored", "num_right", "change", "last_step")
    return {
        "prompt_index": line.position,
        "text": line.text if line.row else None,
        "solved_at": line.solved_at,
        "forgotten_at": line.forgotten_at,
        **{name: getattr(line, name) for name in names},
    }


class LearntPromptsOut(Schema):
    items: list[LearntPromptOut]
    next_cursor: str | None
    total: int = Field(description="Prompts that were chosen.", examples=[40])
    num_seen: int = Field(description="Prompts that the run sampled.", examples=[300])
    kinds: dict[str, int] = Field(
        description="How many of each class.", examples=[{"never": 40, "solved": 260}]
    )
    first_step: int | None = Field(description="Of the steps that were counted.")
    last_step: int | None
    problem: str = Field(description="Why nothing can be told right.")


class PromptFilters(Schema):
    which: str = Field("all", max_length=40, description=ABOUT_WHICH)
    at_most: Percent
    low: Percent
    high: Percent
    visits: Annotated[int | None, Query(None, ge=1, le=1_000_000)]
    first_step: StepBound
    last_step: StepBound
    sort: str = Field("pass", max_length=40, description=ABOUT_SORT)


@router.get(
    "/{run_id}/prompts", response=LearntPromptsOut, summary="List a run's prompts"
)
def run_prompts(
    request: HttpRequest,
    run_id: Id,
    cursor: Cursor,
    limit: Limit,
    filters: Query[PromptFilters],
) -> LearntPromptsOut:
    """With what each learnt, as the run's tab Prompts classifies them."""
    run = get_run(access_of(request).team, run_id)
    form = _form(filters.model_dump(), place="query")
    return _page(run, find_prompts(run, form), cursor, limit)


def _form(values: dict[str, Any], *, place: str) -> PromptFilterForm:
    form = PromptFilterForm.read(query_of(values))
    refuse_errors(form, place=place)
    return form


def _page(run: Run, found: Found, cursor: str, limit: int) -> LearntPromptsOut:
    """One query, of what was chosen."""
    start = read_cursor(cursor) if cursor else 0
    chosen: list[Any] = [] if found.chosen is None else list(found.chosen)
    shown = chosen[start : start + limit]
    lines = [] if found.visits is None else make_lines(run, shown, found.visits)
    end = start + len(lines)
    return LearntPromptsOut(
        items=[LearntPromptOut(**prompt_fields(line)) for line in lines],
        next_cursor=write_cursor(end) if lines and end < len(chosen) else None,
        total=len(chosen),
        num_seen=found.counts.seen if found.counts else 0,
        kinds=_counts(found),
        first_step=found.span.first if found.span else None,
        last_step=found.span.last if found.span else None,
        problem=found.problem,
    )


def _counts(found: Found) -> dict[str, int]:
    kinds = found.counts.kinds.items() if found.counts else ()
    return {str(kind): num for kind, num in kinds}


def _words(form: PromptFilterForm) -> str:
    which: str = form.value("which")
    return CLASS_WORDS.get(which, which)


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
