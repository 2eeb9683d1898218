"""What workers and beat tell of themselves by their tasks."""

from __future__ import annotations

from typing import Any

from celery.signals import after_task_publish, beat_init, task_postrun, task_prerun

from dashboard.meters.shared import count, hear

BEATS = {"training.dispatch": "dispatch", "training.reap": "reap"}


def hear_beat(**_: Any) -> None:
    hear("beat")


def begin_beat(**_: Any) -> None:
    """This process is beat: each message that it sends tells that it lives."""
    after_task_publish.connect(hear_beat)


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
    beat_init.connect(begin_beat)
    task_prerun.connect(hear_worker)
    task_postrun.connect(count_task)
