"""What workers tell of themselves, and of beat's tasks, by those that they do."""

from __future__ import annotations

from typing import Any

from celery.signals import task_postrun, task_prerun

from dashboard.meters.shared import count, hear

BEATS = {"training.dispatch": "dispatch", "training.reap": "reap"}


def hear_worker(task: Any, **_: Any) -> None:
    """Beat sends a default worker something every five seconds."""
    if task.request.delivery_info.get("routing_key") == "default":
        hear("default worker")


def count_task(task: Any, state: str | None = None, **_: Any) -> None:
    count("cohort_tasks_total", task=task.name, state=(state or "unknown").lower())
    if state == "SUCCESS" and task.name in BEATS:
        hear(BEATS[task.name])


def count_tasks() -> None:
    """From now on, in this process."""
    task_prerun.connect(hear_worker)
    task_postrun.connect(count_task)
