"""Tasks bear the number of the request that they were sent for."""

from __future__ import annotations

from typing import Any

from celery.signals import before_task_publish, task_postrun, task_prerun

from dashboard.logs.facts import begin, current_request_id
from dashboard.reporting.spans import begin_task_span, carry_span, end_task_span

# A header of the message: a task reads it from its own request.
HEADER = "cohort_request_id"


def carry_request(headers: dict[str, Any] | None = None, **_: Any) -> None:
    request_id = current_request_id()
    if headers is not None and request_id:
        headers[HEADER] = request_id


def begin_task(task: Any, **_: Any) -> None:
    begin(task=task.name, request_id=task.request.get(HEADER))


def end_task(**_: Any) -> None:
    begin()


def carry_requests() -> None:
    """From now on, in this process; more than once does no harm."""
    before_task_publish.connect(carry_request)
    before_task_publish.connect(carry_span)
    task_prerun.connect(begin_task)
    task_prerun.connect(begin_task_span)
    task_postrun.connect(end_task_span)  # which reads what the next forgets
    task_postrun.connect(end_task)
