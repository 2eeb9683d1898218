"""Schemas of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from django.db.models import QuerySet
from ninja import Schema
from pydantic import Field

from dashboard.api.schemas import Person, Real, fill
from dashboard.runs.models import Run

RELATED = ("owner", "dataset_version__dataset", "recipe_version__recipe")


class VersionRef(Schema):
    """A version of a dataset or of a reward recipe."""

    id: int = Field(description="ID of the version.", examples=[12])
    of: int = Field(description="ID of the dataset or recipe.", examples=[4])
    name: str = Field(examples=["sums"])
    number: int = Field(examples=[2])


def _ref(version: Any, kind: Literal["dataset", "recipe"]) -> VersionRef | None:
    if version is None:
        return None
    of = getattr(version, kind)
    return VersionRef(id=version.pk, of=of.pk, name=of.name, number=version.number)


class RunOut(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    state: str = Field(examples=["running"])
    owner: Person | None
    model: str = Field(examples=["SmolLM2-135M-Instruct"])
    dataset_version: VersionRef | None
    recipe_version: VersionRef | None
    sweep_id: int | None = Field(description="The sweep of the run.")
    tags: list[str] = Field(examples=[["baseline"]])
    last_step: int = Field(description="The last finished step.", examples=[120])
    num_steps: int = Field(description="Steps of the whole run.", examples=[400])
    last_reward: Real = Field(examples=[0.71])
    best_reward: Real = Field(examples=[0.74])
    is_imported: bool = Field(description="Trained outside Cohort.")
    is_locked: bool
    is_archived: bool
    is_trashed: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> Self:
        return fill(
            cls,
            run,
            owner=Person.of(run.owner),
            model=run.model_label,
            dataset_version=_ref(run.dataset_version, "dataset"),
            recipe_version=_ref(run.recipe_version, "recipe"),
            last_reward=run.reward("last"),
            best_reward=run.reward("best"),
            is_locked=run.locked_at is not None,
            is_archived=run.archived_at is not None,
            is_trashed=run.trashed_at is not None,
        )


class RunDetail(RunOut):
    notes: str
    metric_names: list[str] = Field(examples=[["reward/mean", "kl/mean"]])
    fail_reason: str
    pause_reason: str
    stop_reason: str
    cloned_from_id: int | None
    forked_from_id: int | None
    fork_step: int | None
    attempt: int = Field(
        description="Attempt number; rises each time a worker takes the run."
    )
    config: dict[str, Any] = Field(
        description="Settings, in the trainer's format.",
        examples=[{"optim": {"learning_rate": 1e-6}}],
    )


def with_shown(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Load what `RunOut` shows, in one query."""
    return runs.select_related(*RELATED).defer("config", "metric_names", "notes")
