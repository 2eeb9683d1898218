"""What people do to runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery import Celery
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest, Now
from kombu.exceptions import OperationalError

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.trash import hold_untrashed
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.charts.carried import carried_to, totals_of
from dashboard.runs.checkpoints.origins import origin_name, taken
from dashboard.runs.config.error_shares import allow_share, common_share
from dashboard.runs.directory import eval_rows, run_directory
from dashboard.runs.launch.eval_sets import ChosenSet
from dashboard.runs.launch.forms import Launch
from dashboard.runs.launch.published import hold_published
from dashboard.runs.models import (
    ENDED,
    Checkpoint,
    EvaluationSet,
    Run,
    RunGroup,
    RunState,
)
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
    fork_of: Checkpoint | None = None,
    group: RunGroup | None = None,
) -> Run:
    """Queue a run. Its directory is written by the worker that first claims it.

    The configuration names the file of each evaluation set. ValueError where one of the
    datasets was moved to the trash meanwhile, or a model unpublished.
    """
    assert dataset_version.dataset.team_id == team.id, "another team's dataset"
    assert recipe_version.recipe.team_id == team.id, "another team's recipe"
    assert cloned_from is None or cloned_from.team_id == team.id, "another team's run"
    assert fork_of is None or fork_of.run.team_id == team.id, "another team's run"
    for one in evaluation_sets:
        assert one.version.dataset.team_id == team.id, "another team's dataset"
        assert config.evaluation.sets[one.name] == eval_rows(one.name)
    held = [dataset_version, *(one.version for one in evaluation_sets)]
    for version in sorted(held, key=lambda version: version.dataset_id):
        hold_untrashed(version)  # in one order, so that two launches never deadlock
    hold_published(team, config.model_dump(mode="json"))
    run = Run.objects.create(
        team=team,
        owner=user,
        name=name,
        config=config.model_dump(mode="json"),
        dataset_version=dataset_version,
        recipe_version=recipe_version,
        model_label=model_label,
        cloned_from=cloned_from,
        group=group,
        num_steps=config.optim.num_steps,
        **({} if fork_of is None else _origin(fork_of)),
    )
    if fork_of is not None:
        _know_origin(run, fork_of)
    EvaluationSet.objects.bulk_create(
        EvaluationSet(
            run=run,
            name=one.name,
            dataset_version=one.version,
            max_rows=one.max_rows,
        )
        for one in evaluation_sets
    )
    origin = {} if fork_of is None else {"fork_of": fork_of.run_id, "at": fork_of.step}
    record(team=team, actor=user, verb="run.launched", obj=run, name=name, **origin)
    transaction.on_commit(ring_workers)
    return run


def _origin(checkpoint: Checkpoint) -> dict[str, Any]:
    carried = carried_to(checkpoint.run, checkpoint.step)
    return {
        "forked_from": checkpoint.run,
        "fork_step": checkpoint.step,
        "fork_checkpoint": checkpoint.name,
        "fork_sha256": checkpoint.sha256,
        "fork_totals": carried,
        "last_step": checkpoint.step,
        "summary": {"last": totals_of(carried), "best": {}},
    }


def _know_origin(run: Run, checkpoint: Checkpoint) -> None:
    """What a fork begins from is its own first checkpoint."""
    Checkpoint.objects.create(
        run=run,
        step=checkpoint.step,
        epoch=0,
        name=origin_name(checkpoint.step),
        sha256=checkpoint.sha256,
        num_bytes=checkpoint.num_bytes,
        saved_at=checkpoint.saved_at,
    )


def fork_run(checkpoint: Checkpoint, **asked: Any) -> Run:
    """Queue a run that goes on from another's checkpoint, as `launch_run` asks for it.

    Its files are the fork's before any worker can claim it. ValueError where they are
    gone.
    """
    with taken(checkpoint) as files, transaction.atomic():
        run = launch_run(fork_of=checkpoint, **asked)
        if files is not None:
            files.rename(run_directory(run.id).path)
    return run


def launch_one(
    launch: Launch,
    *,
    team: Team,
    user: User | None,
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
    group: RunGroup | None = None,
) -> Run:
    """Queue what a form asks for. ValueError as `launch_run` and `fork_run` say."""
    asked: dict[str, Any] = {
        "team": team,
        "user": user,
        "name": launch.name,
        "config": launch.config,
        "dataset_version": launch.dataset_version,
        "recipe_version": launch.recipe_version,
        "model_label": launch.model_label,
        "evaluation_sets": launch.evaluation_sets,
        "group": group,
    }
    if fork_of is not None:
        return fork_run(fork_of, **asked)
    return launch_run(**asked, cloned_from=cloned_from)


@transaction.atomic
def launch_group(
    *,
    team: Team,
    user: User | None,
    name: str,
    launches: Sequence[Launch],
    cloned_from: Run | None = None,
    fork_of: Checkpoint | None = None,
) -> RunGroup:
    """Queue all of them, or none. ValueError as for a single one."""
    group = RunGroup.objects.create(team=team, name=name, launched_by=user)
    for launch in launches:
        launch_one(
            launch,
            team=team,
            user=user,
            cloned_from=cloned_from,
            fork_of=fork_of,
            group=group,
        )
    num_runs = len(launches)
    record(team, user, "group.launched", group, name=name, num_runs=num_runs)
    return group


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


@transaction.atomic
def cancel_run(*, run: Run, user: User) -> bool:
    """End the run now, without a checkpoint; False when it has ended.

    Whoever holds it is fenced off by the state alone: its supervisor sees that at its
    next look and kills the trainer, and one that is gone or hangs is not asked.
    """
    live = [state for state in RunState if state not in ENDED]
    held = Run.objects.select_for_update().get(id=run.id)
    is_cancelled = transition(
        run.id,
        sources=live,
        target=RunState.STOPPED,
        actor=user,
        verb="run.cancelled",
        detail={"was": held.state},
        stop_reason=f"{user.username} cancelled it. {describe_loss(held)}",
        finished_at=END_TIME,
    )
    if is_cancelled:
        life = held.epochs.filter(number=held.epoch, ended_at=None)
        life.update(ended_at=Now(), outcome=f"cancelled at step {held.last_step}")
    return is_cancelled


def describe_loss(run: Run) -> str:
    """What cannot be gone on from where the run ends without a checkpoint."""
    saved = run.newest_checkpoint.step if run.newest_checkpoint else 0
    lost = run.last_step - saved
    if lost <= 0:
        return "Nothing that was trained is lost."
    steps = f"step {run.last_step:,}" if lost == 1 else f"its last {lost:,} steps"
    where = f"The last checkpoint is of step {saved:,}" if saved else "None was saved"
    return f"{where}: {steps} stay recorded, but nothing can go on from them."


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
def resume_run(
    *,
    run: Run,
    user: User,
    max_error_share: float | None = None,
    seen_epoch: int | None = None,
) -> bool:
    """Queue a paused run again; False when it is not paused, or not as it was seen.

    It goes on from its last checkpoint. `max_error_share` is the one setting that may
    change: it decides when a run pauses, and nothing of what it learns from a step
    that it trains on. `seen_epoch` is that of the pause which somebody answers: since
    then it may have been resumed, with another share, and have paused anew.
    """
    changed: dict[str, Any] = {}
    if max_error_share not in (None, common_share(run.config)):
        changed["config"] = allow_share(run.config, max_error_share)
    is_queued = transition(
        run.id,
        sources=[RunState.PAUSED],
        target=RunState.QUEUED,
        when=None if seen_epoch is None else Q(epoch=seen_epoch),
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
