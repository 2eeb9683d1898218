"""What each prompt of a run learnt."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import uuid4

from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import query_of, refuse_errors
from dashboard.api.paging import Cursor, Limit, read_cursor, write_cursor
from dashboard.api.problems import Problem
from dashboard.api.schemas import Id, IdIn, Input, StepBound, StepIn
from dashboard.datasets.forms.target import TargetForm
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.pass_shares import Kind
from dashboard.samples.prompt_forms import (
    CLASS_WORDS,
    PROMPT_CHOICES,
    PROMPT_SORTS,
    PromptFilterForm,
)
from dashboard.samples.prompt_lines import PromptLine, make_lines
from dashboard.samples.prompt_tables import Found, find_prompts, source_of_prompts

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


class PromptSelectionIn(Input):
    name: str = Field(
        default="", max_length=400, description="Of a new dataset.", examples=["hard"]
    )
    dataset_id: IdIn | None = Field(
        default=None, description="One that gets a new version instead."
    )
    which: str = Field(default="all", max_length=40, examples=["never"])
    at_most: Annotated[float, Field(ge=0, le=100)] | None = None
    low: Annotated[float, Field(ge=0, le=100)] | None = None
    high: Annotated[float, Field(ge=0, le=100)] | None = None
    visits: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    first_step: StepIn | None = None
    last_step: StepIn | None = None


class PromptSelectionOut(Schema):
    import_id: int = Field(description="Of `/imports/{job_id}`.", examples=[8])
    state: str = Field(description="queued, running or done", examples=["done"])
    version_id: int | None = Field(description="null until it is done.", examples=[12])
    num_prompts: int = Field(examples=[40])


@router.post(
    "/{run_id}/prompts/dataset",
    response={201: PromptSelectionOut},
    auth=WRITE,
    summary="Make a dataset of a run's prompts",
)
def dataset_of_prompts(
    request: HttpRequest, run_id: Id, payload: PromptSelectionIn
) -> Status[PromptSelectionOut]:
    """Of those that the filter chooses, as `/runs/{run_id}/prompts` lists them."""
    access = access_of(request)
    run = get_run(access.team, run_id)
    form = _form(payload.model_dump(exclude={"name", "dataset_id"}), place="body")
    found = find_prompts(run, form)
    if run.dataset_version is None or found.chosen is None:
        said = f"{run} has no prompts that are {_words(form)}: there is no row to take."
        raise Problem(409, said)
    run.dataset_version.dataset.team = access.team  # which is at hand
    target = _target(run, payload)
    job = target.start(
        parent=run.dataset_version,
        source=source_of_prompts(run, form, found),
        user=access.user,
        positions=sorted(found.chosen["prompt"].tolist()),
    )
    if job is None:
        refuse_errors(target, place="body", names={"target": "dataset_id"})
        raise AssertionError("a form that starts nothing says why")
    return Status(
        201,
        PromptSelectionOut(
            import_id=job.pk,
            state=job.state,
            version_id=job.version_id,
            num_prompts=len(found.chosen),
        ),
    )


def _target(run: Run, payload: PromptSelectionIn) -> TargetForm:
    given = {"target": payload.dataset_id, "name": payload.name, "key": uuid4()}
    target = TargetForm(run.team, name="", data=query_of(given))
    refuse_errors(target, place="body", names={"target": "dataset_id"})
    return target


def _words(form: PromptFilterForm) -> str:
    which: str = form.value("which")
    return CLASS_WORDS.get(which, which)
