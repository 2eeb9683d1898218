"""Pass rates and classes of a run's prompts."""

from __future__ import annotations

from typing import Annotated, Any

from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, ApiRequest
from dashboard.api.schemas import (
    Cursor,
    Id,
    Limit,
    Page,
    Real,
    StepBound,
    fill,
    query_of,
    read_cursor,
    refuse_errors,
    write_cursor,
)
from dashboard.completions.pass_rates import Kind
from dashboard.completions.prompt_forms import (
    PROMPT_CHOICES,
    PROMPT_SORTS,
    PromptFilterForm,
)
from dashboard.completions.prompts import find_prompts, make_lines
from dashboard.runs.queries import get_run

router = Router(tags=["Prompts"], auth=READ)
Percent = Annotated[float | None, Query(None, ge=0, le=100)]


class LearnedPromptOut(Schema):
    prompt_index: int = Field(
        description="Row number in the dataset version.", examples=[17]
    )
    text: str | None = Field(
        description="The question. Of a chat, the text of its messages.",
        examples=["What is 17 + 1?"],
    )
    kind: Kind = Field(
        description="By its last groups: never, solved (in each, not always), always "
        "(all completions), forgotten, oscillating or unscored.",
        examples=["solved"],
    )
    num_seen: int = Field(description="Number of groups.", examples=[12])
    num_scored: int = Field(
        description="Scored completions of the last groups.", examples=[8]
    )
    num_right: int = Field(description="How many are correct.", examples=[6])
    change: Real = Field(
        description="Change of the pass rate, in percentage points.", examples=[50.0]
    )
    last_step: int = Field(examples=[118])
    solved_at: int | None = Field(description="Step of the first correct group.")
    forgotten_at: int | None = Field(
        description="Step of the first group after the last correct one."
    )


class LearnedPromptsOut(Page[LearnedPromptOut]):
    total: int = Field(description="Prompts that match.", examples=[40])
    num_seen: int = Field(description="Prompts sampled by the run.", examples=[300])
    kinds: dict[str, int] = Field(
        description="Number of prompts by class.",
        examples=[{"never": 40, "solved": 260}],
    )
    first_step: int | None = Field(description="First step with groups.")
    last_step: int | None
    problem: str = Field(
        description="Why correctness is unknown; empty if it is known."
    )


class PromptFilters(Schema):
    which: str = Field(
        "all",
        max_length=40,
        description="; ".join(f"{key}: {words}" for key, words in PROMPT_CHOICES),
    )
    at_most: Percent
    low: Percent
    high: Percent
    visits: Annotated[int | None, Query(None, ge=1, le=1_000_000)]
    first_step: StepBound
    last_step: StepBound
    sort: str = Field(
        "pass",
        max_length=40,
        description="; ".join(f"{key}: {words}" for key, words in PROMPT_SORTS),
    )


@router.get(
    "/{run_id}/prompts", response=LearnedPromptsOut, summary="List a run's prompts"
)
def run_prompts(
    request: ApiRequest,
    run_id: Id,
    cursor: Cursor,
    limit: Limit,
    filters: Query[PromptFilters],
) -> LearnedPromptsOut:
    """List prompts with pass rate and class, as in the run's Prompts tab."""
    run = get_run(request.auth.team, run_id)
    form = PromptFilterForm.read(query_of(filters.model_dump()))
    refuse_errors(form)
    matches = find_prompts(run, form)
    start = read_cursor(cursor) if cursor else 0
    chosen: list[Any] = [] if matches.chosen is None else list(matches.chosen)
    page = chosen[start : start + limit]
    lines = [] if matches.visits is None else make_lines(run, page, matches.visits)
    end = start + len(lines)
    kinds = matches.counts.kinds.items() if matches.counts else ()
    return LearnedPromptsOut(
        items=[
            fill(
                LearnedPromptOut,
                line,
                prompt_index=line.position,
                text=line.text if line.row else None,
            )
            for line in lines
        ],
        next_cursor=write_cursor(end) if lines and end < len(chosen) else None,
        total=len(chosen),
        num_seen=matches.counts.seen if matches.counts else 0,
        kinds={str(kind): num for kind, num in kinds},
        first_step=matches.span.first if matches.span else None,
        last_step=matches.span.last if matches.span else None,
        problem=matches.problem,
    )
