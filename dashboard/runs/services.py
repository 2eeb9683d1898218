"""What people do to runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery import Celery
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest, Now
from kombu.exceptions import OperationalError

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.trash import hold_untrashed
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.directory import eval_rows
from dashboard.runs.error_shares import allow_share, common_share
from dashboard.runs.eval_sets import ChosenSet
from dashboard.runs.models import EvaluationSet, Run, RunState
from dashboard.runs.state import transition
from trainer.config import RunConfig

logger = logging.getLogger(__name__)
# The web server's clock gave created_at, the database gives the end: they may differ.
END_TIME = Greatest(Now(), F("created_at"))


@transaction.atomic
def launch_run(
    *,
    team: Team,
    user: User | None,
    name: str,
    config: RunConfig,
    dataset_version: DatasetVersion,
    recipe_version: RecipeVersion,
    model_label: str,
    evaluation_sets: Sequence[ChosenSet] = (),
    cloned_from: Run | None = None,
) -> Run:
    """Queue a run. Its directory is written by the worker that first claims it.

    The configuration names the file of each evaluation set. ValueError where one of the
    datasets was moved to the trash meanwhile.
    """
    assert dataset_version.dataset.team_id == team.id, "another team's dataset"
    assert recipe_version.recipe.team_id == team.id, "another team's recipe"
    assert cloned_from is None or cloned_from.team_id == team.id, "another team's run"
    for one in evaluation_sets:
        assert one.version.dataset.team_id == team.id, "another team's dataset"
        assert config.evaluation.sets[one.name] == eval_rows(one.name)
    held = [dataset_version, *(one.version for one in evaluation_sets)]
    for version in sorted(held, key=lambda version: version.dataset_id):
        hold_untrashed(version)  # in one order, so that two launches never deadlock
    run = Run.objects.create(
        team=team,
        owner=user,
        name=name,
        config=config.model_dump(mode="json"),
        dataset_version=dataset_version,
        recipe_version=recipe_version,
        model_label=model_label,
        cloned_from=cloned_from,
        num_steps=config.optim.num_steps,
    )
    EvaluationSet.objects.bulk_create(
        EvaluationSet(
            run=run,
            name=one.name,
            dataset_version=one.version,
            max_rows=one.max_rows,
        )
        for one in evaluation_sets
    )
    record(team=team, actor=user, verb="run.launched", obj=run, name=name)
    transaction.on_commit(ring_workers)
    return run


def request_stop(*, run: Run, user: User | None) -> bool:
    """Ask for the run's end; False when it has ended or is already ending.

    A run that no worker holds is stopped at once, another by its supervisor, which
    lets the trainer finish its step and save a checkpoint.
    """
    return transition(
        run.id,
        sources=[RunState.QUEUED, RunState.PAUSED, RunState.LOST],
        target=RunState.STOPPED,
        actor=user,
        verb="run.stop_requested",
        finished_at=END_TIME,
    ) or transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING, RunState.PAUSING],
        target=RunState.STOPPING,
        actor=user,
        verb="run.stop_requested",
    )


def request_pause(*, run: Run, user: User) -> bool:
    """Ask a run that has a worker to save and let go of it; False when it has none."""
    return transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.PAUSING,
        actor=user,
        verb="run.pause_requested",
        pause_reason=f"{user.username} asked for it.",
    )


@transaction.atomic
def resume_run(*, run: Run, user: User, max_error_share: float | None = None) -> bool:
    """Queue a paused run again; False when it is not paused.

    It goes on from its last checkpoint. `max_error_share` is the one setting that may
    change: it decides when a run pauses, and nothing of what it learns from a step
    that it trains on.
    """
    changed: dict[str, Any] = {}
    if max_error_share not in (None, common_share(run.config)):
        changed["config"] = allow_share(run.config, max_error_share)
    is_queued = transition(
        run.id,
        sources=[RunState.PAUSED],
        target=RunState.QUEUED,
        actor=user,
        verb="run.resume_requested",
        detail={"max_error_share": max_error_share} if changed else None,
        pause_reason="",
        attempt=0,
        not_before=None,
        **changed,
    )
    if is_queued:
        transaction.on_commit(ring_workers)
    return is_queued


def ring_workers() -> None:
    """Wake a training worker. Best effort: the dispatcher rings again every 5 s."""
    try:
        # The web process has no Celery app of its own; it only puts a message down.
        with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
            app.send_task("training.work", queue="training", expires=3_600, retry=False)
    except OperationalError as error:
        logger.warning("Could not ring the training workers: %s", error)
