"""Searches the completions of a run, with the filters of its Completions tab."""

from __future__ import annotations

from typing import Annotated, Any

from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, ApiRequest
from dashboard.api.groups import CompletionOut, completion_out
from dashboard.api.problems import Problem
from dashboard.api.schemas import (
    Cursor,
    Id,
    StepBound,
    fill,
    query_of,
    read_cursor,
    refuse_errors,
    write_cursor,
)
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.search.blocks import BlocksChanged
from dashboard.completions.search.results import PAGE_SIZE, Found, find
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

router = Router(tags=["Completions"], auth=READ)
ATTEMPTS = 3
START_BITS = 31  # a search's cursor: start position, then number of matches before
Short = Annotated[str, Query("", max_length=200)]
Number = Annotated[float | None, Query(None, allow_inf_nan=False)]


class FoundCompletion(CompletionOut):
    step: int
    prompt_index: int


class FoundCompletionsOut(Schema):
    items: list[FoundCompletion]
    next_cursor: str | None
    num_found: int = Field(description="Matches found so far.")
    is_counted: bool = Field(
        description="False: a text search stops after a time limit, so there may be "
        "more than `num_found` matches. Continue with the cursor, also after an empty "
        "page."
    )
    total: int = Field(description="Completions of the run.")


class CompletionFilters(Schema):
    text: Short
    match: Short = Field(
        "", description="text: substring (default); words: whole words"
    )
    surprise: Short = Field(
        "",
        description="right_low: correct answer, low reward. high_short: high reward, "
        "short. near: near-duplicate in its group.",
    )
    outcome: Short = Field(
        "",
        description="right (correct by the rules that compare with the answer; without "
        "such rules, by the highest reward), not_right or unscored",
    )
    end: Short = Field("", description="stop, length or unknown")
    first_step: StepBound
    last_step: StepBound
    prompt: StepBound
    min_reward: Number
    max_reward: Number
    min_advantage: Number
    max_advantage: Number
    min_length: StepBound
    max_length: StepBound
    rule: Short
    min_score: Number
    max_score: Number
    tag: Short
    mark: Short = Field("", description="any, good, bad, tagged or commented")
    by: Short = Field("", description="me")
    sort: Short = Field(
        "",
        description="step, reward, advantage or length; a leading `-` sorts in "
        "descending order. Default -step.",
    )


@router.get(
    "/{run_id}/completions", response=FoundCompletionsOut, summary="Search completions"
)
def completions(
    request: ApiRequest, run_id: Id, cursor: Cursor, filters: Query[CompletionFilters]
) -> FoundCompletionsOut:
    """Fifty per page, with the filters of the run's Completions tab."""
    run = get_run(request.auth.team, run_id)
    query = query_of(filters.model_dump())
    if cursor:
        start, before = divmod(read_cursor(cursor), 2**START_BITS)
        page = {"start": start, "before": before} if filters.text else {"page": before}
        query.update({name: str(value) for name, value in page.items()})
    form = CompletionFilterForm.of_run(query, run)
    refuse_errors(form)
    matches = _find(run, form, request.auth.user)
    return fill(
        FoundCompletionsOut,
        matches,
        items=[
            completion_out(
                FoundCompletion,
                completion,
                completion.group.rule_names,
                step=completion.group.step,
                prompt_index=completion.group.prompt_index,
            )
            for completion in matches.completions
        ],
        next_cursor=_next(matches),
    )


def _find(run: Run, form: CompletionFilterForm, reader: Any) -> Found:
    for _ in range(ATTEMPTS):
        try:
            return find(run, form, reader)
        except BlocksChanged:
            continue
    raise Problem(
        409,
        "The run's completions changed during the search. Try again.",
        code="completions.changed",
    )


def _next(matches: Found) -> str | None:
    if matches.progress is None:
        is_last = matches.number >= matches.num_pages
        return None if is_last else write_cursor(matches.number + 1)
    if matches.progress.next_start is None:
        return None
    before = matches.num_before + min(PAGE_SIZE, len(matches.completions))
    return write_cursor(matches.progress.next_start * 2**START_BITS + before)
