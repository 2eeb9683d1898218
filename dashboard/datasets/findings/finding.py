"""Looks through a version's rows: asked for by a page, found by a job, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dashboard.datasets.models import DatasetVersion, Finding
from dashboard.datasets.row import Row
from dashboard.datasets.rows.reading import read_rows_at
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import (
    enqueue_few,
    is_worth_asking,
    newest_job,
    waiting_reason,
)

REPORT_ROWS = 200
# Called with the rows looked at so far and how many there are.
Report = Callable[[int, int], object]


def unheard(_done: int, _total: int) -> None:
    """For what is found while a page is made."""


def ask_again(found: Finding, *, team_id: int) -> None:
    """What failed may have been mended since."""
    failed = newest_job(found.JOB, found.pk)
    if found.problem or (failed and failed.state == JobState.FAILED):
        type(found)._default_manager.filter(pk=found.pk).update(problem="")
        found.problem = ""
        enqueue_few(found.JOB, found.pk, team_id=team_id)


def ask(found: Finding, *, team_id: int) -> None:
    """Have it found, unless it is; how far that is, and why it waits."""
    if found.is_done or found.problem:
        return
    job = newest_job(found.JOB, found.pk)
    if is_worth_asking(job):
        job = enqueue_few(found.JOB, found.pk, team_id=team_id)
    if job is None:
        found.waiting_text = (
            "Your team has as many analyses waiting as it may. Keep this page open, "
            "or come back later."
        )
    elif job.state == JobState.FAILED:
        found.problem = job.error
    else:
        found.num_looked = job.done
        found.waiting_text = waiting_reason(job)


def read_all(
    found: Finding, version: DatasetVersion, wanted: range, report: Report
) -> Iterator[Row]:
    """The wanted rows, counted."""
    for row in read_rows_at(version.rows.all(), wanted):
        found.num_looked += 1
        yield row.as_row()
        if found.num_looked % REPORT_ROWS == 0:
            report(found.num_looked, found.num_wanted)


def finish(found: Finding, result: Mapping[str, object], *more: str) -> None:
    found.result = dict(result)
    found.save(update_fields=["result", "num_looked", "num_wanted", *more])
