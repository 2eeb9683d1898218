"""Celery tasks of the training workers: work, dispatch, reap, resume; heartbeats."""

from __future__ import annotations

import logging
import shutil
from typing import Any

from celery import Celery, Task, shared_task
from celery.signals import celeryd_after_setup, worker_ready, worker_shutdown
from django.conf import settings
from django.db import DatabaseError, Error, connection, transaction
from django.db.models import Q

from dashboard.alerts.firing import alert_of_budgets, alert_of_silence
from dashboard.jobs import shutdown
from dashboard.jobs.schedule import DAY_SECONDS, count_waiting
from dashboard.runs.models import Run, RunEvent, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.queue.hosts import Needs, known_cluster
from dashboard.runs.state import notify_workers, transition
from dashboard.supervision.beside import JobsBesideRuns
from dashboard.supervision.clusters import ClusterReader, StorageCleaner
from dashboard.supervision.ending import DISK_REMEDY
from dashboard.supervision.lease import claim_next, startable
from dashboard.supervision.lease import reap as reap_expired_leases
from dashboard.supervision.supervisor import Timing, supervise
from dashboard.supervision.worker_hosts import note_unseen, sees_files, this_host
from dashboard.supervision.workers import WorkerHeartbeat, reclaim

logger = logging.getLogger(__name__)
QUEUE = "training"
_heartbeats: list[WorkerHeartbeat] = []


def send_work(app: Celery) -> int:
    """Send one message for each run that may start and has none waiting; how many."""
    num_startable = startable().count()
    if not num_startable:
        return 0
    num_rings = max(0, num_startable - count_waiting(app, QUEUE))
    for _ in range(num_rings):
        app.send_task("training.work", queue=QUEUE, expires=DAY_SECONDS)
    return num_rings


def resume_on_free_disk() -> list[int]:
    """Resume runs that paused for disk space and have it now; returns their IDs.

    Not those that someone also requested to pause.
    """
    return [
        run.id
        for run in Run.objects.filter(
            state=RunState.PAUSED, source={}, pause_reason__endswith=DISK_REMEDY
        ).only("id", "attempt")
        if _has_disk_space(run) and _resume(run)
    ]


def _has_disk_space(run: Run) -> bool:
    folder = run_directory(run.id).path
    # `needs` is None if it did not pause for disk space.
    body = (
        RunEvent.objects.filter(run_id=run.id, attempt=run.attempt, type="run_paused")
        .order_by("-line")
        .values_list("body", flat=True)
        .first()
    )
    needs: int | None = body.get("needs_bytes") if body else None
    if needs is None or not folder.is_dir():
        return False
    return shutil.disk_usage(folder).free >= needs


def _resume(run: Run) -> bool:
    with transaction.atomic():
        is_queued = transition(
            run.id,
            sources=[RunState.PAUSED],
            target=RunState.QUEUED,
            when=Q(attempt=run.attempt),
            detail={"why": "disk space is available again"},
            pause_reason="",
            num_losses=0,
            not_before=None,
        )
        if is_queued:
            transaction.on_commit(notify_workers)
    return is_queued


@shared_task(name="training.work", bind=True, ignore_result=True)
def work(self: Task[..., None]) -> None:
    """Train the first queued run that fits this worker."""
    worker = self.request.hostname or "worker"
    unseen: list[Run] = []

    def sees(run: Run) -> bool:
        if sees_files(run):
            # Waiting in Ray for a larger cluster, a run would hold this worker.
            ranks = Needs.of(run.config).ranks
            cluster = known_cluster(run.team) if ranks else None
            room = cluster.room(ranks) if cluster and ranks else None
            return room is None or room.is_possible
        unseen.append(run)
        return False

    if shutdown.is_announced():
        return
    claim = claim_next(this_host(worker), sees=sees)
    try:
        note_unseen(worker, unseen)
    except Error as error:  # what was claimed is not to wait for its lease's end
        logger.warning("Failed to note which runs %s skipped: %s", worker, error)
    if claim is not None:
        supervise(
            claim,
            is_shutting_down=shutdown.is_announced,
            timing=Timing(hang_seconds=settings.COHORT_HANG_SECONDS),
        )


@shared_task(name="training.dispatch", bind=True, ignore_result=True)
def dispatch(self: Task[..., None]) -> None:
    send_work(self.app)


@shared_task(name="training.reap", ignore_result=True)
def reap() -> None:
    reap_expired_leases()
    alert_of_silence()
    alert_of_budgets()


@shared_task(name="training.go_on", ignore_result=True)
def resume() -> None:
    resume_on_free_disk()


@celeryd_after_setup.connect
def reclaim_left_runs(sender: str, instance: Any, **_: Any) -> None:
    """`sender` is the worker's name; no task has started yet."""
    if QUEUE not in instance.app.amqp.queues.consume_from:
        return
    try:
        reclaim(sender)
    except DatabaseError as error:
        logger.warning(
            "Failed to requeue this worker's old runs, so they wait for their leases "
            "to expire: %s",
            error,
        )
    finally:
        connection.close()  # the pool's processes are forked from this one


@worker_ready.connect
def start_heartbeat(sender: Any, **_: Any) -> None:
    """`sender` is the worker's consumer."""
    if QUEUE in {queue.name for queue in sender.task_consumer.queues}:
        name = sender.hostname
        heartbeat = WorkerHeartbeat(
            name,
            num_slots=sender.controller.concurrency,
            on_drain=lambda is_drained: _apply_drain(sender.app, name, is_drained),
            beside=(
                ClusterReader(name),
                StorageCleaner(),
                JobsBesideRuns(
                    name, queue=QUEUE, num_slots=sender.controller.concurrency
                ),
            ),
        )
        _heartbeats.append(heartbeat)
        heartbeat.start()


def _apply_drain(app: Any, name: str, is_drained: bool) -> None:
    """Leave the messages to others: the claim would refuse each, one by one."""
    ask = app.control.cancel_consumer if is_drained else app.control.add_consumer
    ask(QUEUE, destination=[name])


@worker_shutdown.connect
def stop_heartbeat(**_: Any) -> None:
    while _heartbeats:
        _heartbeats.pop().stop()
