from __future__ import annotations

import logging
from typing import Any

from celery import Task, shared_task
from celery.signals import celeryd_after_setup, worker_ready, worker_shutdown
from django.conf import settings
from django.db import DatabaseError, Error, connection

from dashboard.jobs import shutdown
from dashboard.runs.models import Run
from dashboard.training.dispatch import QUEUE
from dashboard.training.dispatch import dispatch as ring_for_queued_runs
from dashboard.training.hosts import this_host
from dashboard.training.lease import claim_next
from dashboard.training.reaper import reap as reap_expired_leases
from dashboard.training.room import resume_where_there_is_room
from dashboard.training.supervise import Timing, supervise
from dashboard.training.visibility import note_unseen, sees_files
from dashboard.training.workers import WorkerBeat, reclaim

logger = logging.getLogger(__name__)
_beats: list[WorkerBeat] = []


@shared_task(name="training.work", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work(self: Task[..., None]) -> None:
    """Take the first run in line that suits this worker, and see it through."""
    worker = self.request.hostname or "worker"
    unseen: list[Run] = []

    def sees(run: Run) -> bool:
        if sees_files(run):
            return True
        unseen.append(run)
        return False

    if shutdown.is_announced():
        return
    claim = claim_next(this_host(worker), sees=sees)
    try:
        note_unseen(worker, unseen)
    except Error as error:  # what was claimed is not to wait for its lease's end
        logger.warning("What %s leaves to others was not noted: %s", worker, error)
    if claim is not None:
        timing = Timing(hang_seconds=settings.COHORT_HANG_SECONDS)
        supervise(claim, is_shutting_down=shutdown.is_announced, timing=timing)


@shared_task(name="training.dispatch", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def dispatch(self: Task[..., None]) -> None:
    ring_for_queued_runs(self.app)


@shared_task(name="training.reap", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def reap() -> None:
    reap_expired_leases()


@shared_task(name="training.go_on", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def go_on() -> None:
    resume_where_there_is_room()


@celeryd_after_setup.connect  # type: ignore[untyped-decorator]  # Celery has no types
def reclaim_left_runs(sender: str, instance: Any, **_: Any) -> None:
    """`sender` is the worker's name; no task has been taken yet."""
    if QUEUE not in instance.app.amqp.queues.consume_from:
        return
    try:
        reclaim(sender)
    except DatabaseError as error:
        logger.warning("Left runs wait for their leases to run out: %s", error)
    finally:
        connection.close()  # the pool's processes are forked from this one


@worker_ready.connect  # type: ignore[untyped-decorator]  # Celery has no types
def start_beat(sender: Any, **_: Any) -> None:
    """`sender` is the worker's consumer."""
    if QUEUE in {queue.name for queue in sender.task_consumer.queues}:
        name = sender.hostname
        beat = WorkerBeat(
            name,
            num_slots=sender.controller.concurrency,
            on_drain=lambda is_drained: _heed_drain(sender.app, name, is_drained),
        )
        _beats.append(beat)
        beat.start()


def _heed_drain(app: Any, name: str, is_drained: bool) -> None:
    """Leave the messages to others: the claim would refuse each, one by one."""
    ask = app.control.cancel_consumer if is_drained else app.control.add_consumer
    ask(QUEUE, destination=[name])


@worker_shutdown.connect  # type: ignore[untyped-decorator]  # Celery has no types
def stop_beat(**_: Any) -> None:
    while _beats:
        _beats.pop().stop()
