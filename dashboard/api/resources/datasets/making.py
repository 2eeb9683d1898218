"""Datasets that are made of rows the team has, or of a generator's."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

from django.http import Http404, HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import Problem, or_refuse, refuse_field
from dashboard.api.resources.datasets.filters import RowFilters, read_view
from dashboard.api.resources.datasets.imports import answer_import
from dashboard.api.resources.datasets.schemas import (
    DatasetVersionOut,
    ImportOut,
    Name,
    Number,
    RowOut,
    find_dataset,
    find_version,
)
from dashboard.api.schemas import LARGEST_STEP, Id, Input
from dashboard.datasets.forms.generate import GenerateForm
from dashboard.datasets.forms.target import TargetForm
from dashboard.datasets.generated import make_generated
from dashboard.datasets.generators.reasoning_gym import (
    GeneratorsMissing,
    Task,
    example_rows,
    list_tasks,
)
from dashboard.datasets.queries import get_import_job
from dashboard.datasets.selections import source_of_view

router = Router(tags=["Datasets"], auth=READ)
EXAMPLES = 3


class SelectionIn(Input):
    name: Name = Field(
        default="",
        description="Of a new dataset; without `dataset_id` it is needed.",
        examples=["hard sums"],
    )
    dataset_id: Number | None = Field(
        default=None, description="The rows become its next version instead."
    )
    rows: RowFilters = Field(
        default_factory=lambda: RowFilters.model_validate({}),
        description="As `rows` of the version takes them; empty: all rows.",
        examples=[{"q": "apples", "sort": "prompt_length"}],
    )


@router.post(
    "/dataset-versions/{version_id}/selections",
    response={201: ImportOut, 202: ImportOut},
    auth=WRITE,
    summary="Save a version's rows as a dataset",
)
def save_dataset_rows(
    request: HttpRequest, version_id: Id, payload: SelectionIn
) -> Status[ImportOut]:
    """Those that the filters leave, in the order they say. 202: a worker does it."""
    access = access_of(request)
    version = find_version(access.team, version_id)
    view = read_view(version, payload.rows, "body.rows")
    dataset = find_dataset(access.team, payload.dataset_id)
    target = str(dataset.pk) if dataset else ""
    data = {"target": target, "name": payload.name, "key": str(uuid4())}
    form = TargetForm(access.team, name="", data=data)
    refuse_errors(form, place="body")
    source = source_of_view(version, view)
    job = form.start(parent=version, source=source, user=access.user)
    refuse_errors(form, place="body")
    assert job, "the form would say why there is none"
    return answer_import(get_import_job(access.team, job.pk))


class OptionOut(Schema):
    name: str = Field(examples=["max_terms"])
    default: bool | int | float | str = Field(examples=[6])
    help: str
    bounds: str = Field(examples=["max_terms ≥ min_terms"])


class GeneratorOut(Schema):
    name: str = Field(examples=["chain_sum"])
    summary: str
    options: list[OptionOut]


class GeneratorsOut(Schema):
    items: list[GeneratorOut]


@router.get("/generators", response=GeneratorsOut, summary="List generators")
def generators(request: HttpRequest) -> GeneratorsOut:
    """Tasks that write their own prompts and answers."""
    return GeneratorsOut(items=[_generator(task) for task in _tasks().values()])


class GeneratorExamples(GeneratorOut):
    examples: list[RowOut]


@router.get(
    "/generators/{task}", response=GeneratorExamples, summary="Look at a generator"
)
def generator(request: HttpRequest, task: str) -> GeneratorExamples:
    """With three rows by its default options and seed 0."""
    found = _task(task)
    try:
        rows = example_rows(found.name, EXAMPLES)
    except ValueError:
        rows = ()
    examples = [
        RowOut(
            position=at,
            prompt=row.prompt,
            answer=row.answer,
            columns=row.columns,
        )
        for at, row in enumerate(rows)
    ]
    return GeneratorExamples(**_generator(found).model_dump(), examples=examples)


class GenerateIn(Input):
    name: Name = Field(examples=["chain sums"])
    size: Annotated[int, Field(ge=1, le=20_000)] = Field(default=1_000, examples=[500])
    seed: Annotated[int, Field(ge=0, le=LARGEST_STEP)] = 0
    options: dict[str, bool | int | float | str] = Field(
        default={}, examples=[{"max_terms": 4}]
    )


@router.post(
    "/generators/{task}/datasets",
    response={201: DatasetVersionOut},
    auth=WRITE,
    summary="Generate a dataset",
)
def generate_dataset(
    request: HttpRequest, task: str, payload: GenerateIn
) -> Status[DatasetVersionOut]:
    """The same task, options, size and seed always give the same rows."""
    access = access_of(request)
    found = _task(task)
    known = {option.name for option in found.options}
    for name in payload.options:
        if name not in known:
            raise refuse_field(
                f"body.options.{name[:60]}",
                f"{found.name} has no such option. It has: {', '.join(sorted(known))}.",
            )
    form = GenerateForm(access.team, payload.model_dump(exclude={"options"}))
    refuse_errors(form, place="body")
    typed = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in payload.options.items()
    }
    with or_refuse("body.options"):
        version = make_generated(
            team=access.team,
            user=access.user,
            task=found,
            typed=typed,
            **form.cleaned_data,
        )
    return Status(201, DatasetVersionOut.of(version))


def _generator(task: Task) -> GeneratorOut:
    options = [
        OptionOut(name=o.name, default=o.default, help=o.help, bounds=o.bounds)
        for o in task.options
    ]
    return GeneratorOut(name=task.name, summary=task.summary, options=options)


def _task(name: str) -> Task:
    task = _tasks().get(name)
    if task is None:
        raise Http404(f"There is no generator {name[:60]!r}.")
    return task


def _tasks() -> dict[str, Task]:
    try:
        return {task.name: task for task in list_tasks()}
    except GeneratorsMissing as missing:
        raise Problem(404, str(missing)) from missing
