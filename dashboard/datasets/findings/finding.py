"""Looks through a version's rows: asked for by a page, made by a worker, kept.

A finding that no worker has got on with for a while is asked for again, so a task that
is lost with its broker or its worker costs time and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

from django.utils import timezone

from dashboard.datasets.background import put_in_line, waiting_text
from dashboard.datasets.models import (
    DatasetVersion,
    Finding,
    TokenLengths,
    VersionStatistics,
)
from dashboard.datasets.row import Row
from dashboard.datasets.rows.reading import read_rows_at

PATIENCE = timedelta(minutes=2)
REPORT_SECONDS = 1.0


def ask_again(found: Finding) -> None:
    """What failed may have been mended since."""
    type(found)._default_manager.filter(pk=found.pk).exclude(problem="").update(
        problem="", num_looked=0, moved_at=timezone.now() - PATIENCE
    )


def ask(task: str, found: Finding, *, team_id: int, is_new: bool) -> None:
    if found.is_done or found.problem:
        return
    waits = found.moved_at < timezone.now() - PATIENCE
    if waits or is_new:
        # Where too much waits, the next look at the page asks again.
        is_asked = put_in_line(task, found.pk, team_id=team_id)
        found.moved_at = timezone.now() - (timedelta() if is_asked else 2 * PATIENCE)
        found.save(update_fields=["moved_at"])
    found.waiting_text = waiting_text(task, found.pk, team_id=team_id)


def read_anew(found: VersionStatistics | TokenLengths, wanted: range) -> Iterator[Row]:
    found.num_wanted, found.num_looked = len(wanted), 0
    note(found)
    return read_all(found, found.version, wanted)


def read_all(found: Finding, version: DatasetVersion, wanted: range) -> Iterator[Row]:
    """The wanted rows; how many were given out is written down each second."""
    noted = time.monotonic()
    for row in read_rows_at(version.rows.all(), wanted):
        found.num_looked += 1
        yield row.as_row()
        if time.monotonic() - noted > REPORT_SECONDS:
            note(found)
            noted = time.monotonic()


def note(found: Finding) -> None:
    found.moved_at = timezone.now()
    found.save(update_fields=["num_looked", "num_wanted", "moved_at"])


def finish(found: Finding, result: dict[str, object]) -> None:
    found.result = result
    found.save(update_fields=["result", "num_looked", "num_wanted"])
