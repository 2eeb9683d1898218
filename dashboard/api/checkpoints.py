"""Checkpoints of a run and models published from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from ninja import Path, Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.analysis.probes.checkpoint_tests import (
    MAX_CHARS,
    MAX_SAMPLES,
    UNSCORED,
    CheckpointTestForm,
)
from dashboard.analysis.probes.forms import MAX_TOKENS
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.probes import ProbeOut, probe_out
from dashboard.api.problems import Problem, or_conflict, refuse_field
from dashboard.api.schemas import (
    FILE,
    Cursor,
    Done,
    Id,
    IdIn,
    Input,
    Limit,
    Page,
    Person,
    Real,
    StepIn,
    fill,
    page_by,
    query_of,
    refuse_errors,
)
from dashboard.project.errors import or_404
from dashboard.runs.checkpoints import retention
from dashboard.runs.checkpoints.listing import list_checkpoints
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint, PublishedModel
from dashboard.runs.queries import get_run
from dashboard.supervision.publishing import archive_model, publish, unpublish
from dashboard.web.downloads import attach

models_router = Router(tags=["Models"], auth=READ)
router = Router(tags=["Checkpoints"], auth=READ)
Name = Annotated[str, Path(max_length=120, examples=["step-000050-attempt-1"])]

# Published models.


class PublishedModelOut(Schema):
    id: int = Field(examples=[2])
    name: str = Field(examples=["sums-1"])
    path: str = Field(
        description="Model path for a launch.",
        examples=["/data/models/1/2/model"],
    )
    run_id: int | None = Field(description="null: the run was deleted.", examples=[7])
    run_name: str = Field(examples=["calm-otter-7"])
    step: int = Field(examples=[50])
    sha256: str = Field(description="SHA-256 of the checkpoint's manifest.")
    num_bytes: int = Field(examples=[540_000_000])
    published_by: Person | None
    published_at: datetime
    needed_by: list[int] = Field(
        description="Unfinished runs that start from the model.", examples=[[9]]
    )


def model_out(
    model: PublishedModel, needed_by: list[int] | None = None
) -> PublishedModelOut:
    return fill(
        PublishedModelOut,
        model,
        path=folder_of(model),
        published_by=Person.of(model.published_by),
        needed_by=needed_by or [],
    )


@models_router.get(
    "", response=Page[PublishedModelOut], summary="List published models"
)
def models(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first."""
    models_ = request.auth.team.published_models.select_related("published_by")
    needs = needs_of(request.auth.team)

    def read(model: PublishedModel) -> PublishedModelOut:
        return model_out(model, [run.pk for run in needs.get(folder_of(model), [])])

    return page_by(models_, read, cursor=cursor, limit=limit)


@models_router.delete(
    "/{model_id}", response=Done, auth=WRITE, summary="Unpublish a model"
)
def unpublish_model(request: ApiRequest, model_id: Id) -> Done:
    """Deletes its files. 409 while an unfinished run needs the model."""
    with or_conflict():
        models = request.auth.team.published_models.select_related("published_by")
        model = models.filter(pk=model_id).first()
        unpublish(
            model=or_404(
                model, f"{request.auth.team} has no model with the ID {model_id}."
            ),
            user=request.auth.user,
        )
    return Done(done=True)


# Checkpoints.


class CheckpointOut(Schema):
    name: str = Field(examples=["step-000050-attempt-1"])
    step: int = Field(examples=[50])
    attempt: int = Field(examples=[1])
    sha256: str
    num_bytes: int = Field(examples=[540_000_000])
    saved_at: datetime
    is_there: bool = Field(description="False: its files were deleted.")
    is_best: bool
    is_pinned: bool
    kept_because: list[str]
    score: Real = Field(
        description="Value of the metric that selects the best checkpoint."
    )
    margin: Real = Field(
        default=None, description="Half of the score's 95% confidence interval."
    )


class CheckpointsOut(Schema):
    metric: str = Field(
        description="Metric that selects the best checkpoint; empty: none yet."
    )
    items: list[CheckpointOut]


@router.get(
    "/{run_id}/checkpoints", response=CheckpointsOut, summary="List checkpoints"
)
def checkpoints(request: ApiRequest, run_id: Id) -> CheckpointsOut:
    """Newest first, including checkpoints with deleted files."""
    listing = list_checkpoints(get_run(request.auth.team, run_id))
    items = [
        fill(
            CheckpointOut,
            row.checkpoint,
            is_there=row.is_there,
            is_best=row.is_best,
            is_pinned=row.checkpoint.pinned_at is not None,
            kept_because=row.reasons,
            score=row.score,
            margin=row.margin,
        )
        for row in listing.rows
    ]
    return CheckpointsOut(metric=listing.metric, items=items)


class PinIn(Input):
    is_pinned: bool = Field(description="True: never deleted.", examples=[True])


@router.patch(
    "/{run_id}/checkpoints/{name}",
    response=Done,
    auth=WRITE,
    summary="Pin or unpin a checkpoint",
)
def pin_checkpoint(request: ApiRequest, run_id: Id, name: Name, payload: PinIn) -> Done:
    """Cohort never deletes a pinned checkpoint."""
    change = retention.pin if payload.is_pinned else retention.unpin
    return _change(request, run_id, name, change)


@router.delete(
    "/{run_id}/checkpoints/{name}",
    response=Done,
    auth=WRITE,
    summary="Delete a checkpoint",
)
def delete_checkpoint(request: ApiRequest, run_id: Id, name: Name) -> Done:
    """Deletes its files; the list keeps its row."""
    return _change(request, run_id, name, retention.delete)


@router.get(
    "/{run_id}/checkpoints/{name}/model.tar",
    response=FILE,
    summary="Download a checkpoint's model",
)
def checkpoint_model(request: ApiRequest, run_id: Id, name: Name) -> HttpResponseBase:
    """Return a tar file with weights, tokenizer and config in transformers format."""
    checkpoint = _find(request.auth.team, run_id, name)
    with or_conflict():
        archive = archive_model(checkpoint)
    return attach(
        archive,
        filename=archive.filename,
        content_type="application/x-tar",
        Content_Length=str(len(archive)),
    )


class PublishModelIn(Input):
    name: str = Field(max_length=200, examples=["sums-1"])


@router.post(
    "/{run_id}/checkpoints/{name}/publish",
    response={201: PublishedModelOut},
    auth=WRITE,
    summary="Publish a checkpoint's model",
)
def publish_checkpoint(
    request: ApiRequest, run_id: Id, name: Name, payload: PublishModelIn
) -> Status[PublishedModelOut]:
    """Runs and probes can start from it. Deleting its run does not delete the model."""
    checkpoint = _find(request.auth.team, run_id, name)
    with or_conflict():
        model = publish(
            checkpoint=checkpoint, name=payload.name, user=request.auth.user
        )
    return Status(201, model_out(model))


class TryIn(Input):
    row: StepIn | None = Field(
        default=None,
        description="Row number in the run's dataset version.",
        examples=[5],
    )
    prompt: str = Field(
        default="", max_length=MAX_CHARS, description="A prompt instead of a row."
    )
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = Field(
        default=None,
        description="Completions per model; null: the group size, at most "
        f"{MAX_SAMPLES}.",
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        default=None,
        description="null: the run's value. Same for temperature and seed.",
    )
    temperature: Annotated[float, Field(ge=0.01, le=5)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    recipe_version_id: IdIn | None = Field(
        default=None, description="Reward for scoring; null: the run's reward."
    )
    is_scored: bool = True


@router.post(
    "/{run_id}/checkpoints/{name}/try",
    response={201: ProbeOut},
    auth=WRITE,
    summary="Try a checkpoint",
)
def try_checkpoint(
    request: ApiRequest, run_id: Id, name: Name, payload: TryIn
) -> Status[ProbeOut]:
    """Samples a prompt with the checkpoint and its base model, as a probe."""
    checkpoint = _find(request.auth.team, run_id, name)
    if payload.row is None and not payload.prompt.strip():
        raise refuse_field(
            "body.row", "Send a row or a prompt.", code="checkpoints.prompt_required"
        )
    fields = payload.model_dump(exclude={"recipe_version_id", "is_scored"})
    recipe = payload.recipe_version_id if payload.is_scored else UNSCORED
    query = query_of({**fields, "checkpoint": checkpoint.name, "recipe": recipe})
    form = CheckpointTestForm(get_run(request.auth.team, run_id), query)
    if "checkpoint" in form.errors:
        raise Problem(
            409,
            f"The files of {checkpoint.name} were deleted.",
            code="checkpoints.files_deleted",
        )
    refuse_errors(form, place="body", names={"recipe": "recipe_version_id"})
    with or_conflict():
        return Status(201, probe_out(form.start(request.auth.user)))


def _find(team: Team, run_id: int, name: str) -> Checkpoint:
    run = get_run(team, run_id)
    checkpoint = run.checkpoints.select_related("run__team").filter(name=name).first()
    return or_404(checkpoint, f"{run} has no checkpoint {name[:120]!r}.")


def _change(request: ApiRequest, run_id: int, name: str, change: Any) -> Done:
    with or_conflict():
        change(
            checkpoint=_find(request.auth.team, run_id, name), user=request.auth.user
        )
    return Done(done=True)
