"""Datasets that a generator writes."""

from __future__ import annotations

from typing import Annotated

from django.http import Http404, HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import Problem, or_refuse, refuse_field
from dashboard.api.resources.datasets.schemas import (
    DatasetVersionOut,
    Name,
)
from dashboard.api.schemas import LARGEST_STEP, Input
from dashboard.datasets.forms.generate import GenerateForm
from dashboard.datasets.generated import make_generated
from dashboard.datasets.generators.reasoning_gym import (
    GeneratorsMissing,
    Task,
    list_tasks,
)

router = Router(tags=["Datasets"], auth=READ)


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
