"""The Celery tasks of jobs: work, reap, clean up."""

from __future__ import annotations

import logging
from typing import Any

from celery import Task, shared_task

from dashboard.jobs import queue as jobs
from dashboard.jobs import shutdown
from dashboard.jobs.kinds import all_purges
from dashboard.jobs.runner import run_pending
from dashboard.jobs.schedule import count_waiting

logger = logging.getLogger(__name__)


@shared_task(name="jobs.work", bind=True, ignore_result=True)
def work(self: Task[..., Any], queue: str) -> None:
    run_pending(
        queue, self.request.hostname or "worker", is_shutting_down=shutdown.is_announced
    )


@shared_task(name="jobs.reap", bind=True, ignore_result=True)
def reap(self: Task[..., Any]) -> None:
    """Find lost jobs; notify the workers of queues in which a job is due."""
    jobs.reap()
    for queue in jobs.waiting_queues():
        # A run may occupy a training slot for hours: at most one message waits.
        if queue == "default" or not count_waiting(self.app, queue):
            jobs.notify_workers(queue)


@shared_task(name="jobs.clean", ignore_result=True)
def clean() -> None:
    """Run all purges; one that fails does not stop the others."""
    for purge in (jobs.purge, *all_purges()):
        try:
            purge()
        except Exception:
            logger.exception("%s failed", purge.__qualname__)
