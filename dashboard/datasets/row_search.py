"""Orders of a version's rows, and searches that scan them in the time of a page.

Rows never change, so an order is computed once, by a job if there are many rows. A
stored order is an array of positions; a page reads its part.

There is no text index: it would cost more than the import itself, and not match two
letters (DECISIONS.md, 4). Each query scans a window of rows, which grows while queries
are fast, so that neither a million short rows nor a hundred long ones delay a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from django.db import connection

from dashboard.datasets.models import DatasetVersion, RowOrder
from dashboard.datasets.row_filters import BYTES, COLUMN, PROMPT_CHARS, read_positions
from dashboard.jobs.queue import enqueue_few, newest_job, should_enqueue
from dashboard.project.database import fetch_all

# Sorted for each page: takes at most 40 ms.
MAX_SORTED_AT_ONCE = 20_000

_EXPRESSIONS = {
    "prompt_length": PROMPT_CHARS,
    "answer": "CASE WHEN answer_is_list THEN answer::jsonb ->> 0 ELSE answer END",
    # Of several answers the longest counts.
    "answer_length": "CASE WHEN answer_is_list THEN (SELECT max(char_length(one))"
    " FROM jsonb_array_elements_text(answer::jsonb) one) ELSE char_length(answer) END",
}


# The positions of the rows at indexes first … last - 1.
Order = Callable[[int, int], Sequence[int]]


def find_order(version: DatasetVersion, key: str, *, is_reversed: bool) -> Order | None:
    """Find the order; None while a job computes it."""
    stored = None
    if key != "position" and version.num_rows > MAX_SORTED_AT_ONCE:
        stored, _ = RowOrder.objects.defer("positions").get_or_create(
            version=version, key=key
        )
        if not stored.is_made:
            if should_enqueue(newest_job(stored.JOB, stored.pk)):
                # If the queue is full, the next page view tries again.
                enqueue_few(stored.JOB, stored.pk, team_id=version.dataset.team_id)
            return None
    return _order(version, key, stored, is_reversed=is_reversed)


def compute_order(version: DatasetVersion, key: str, *, is_reversed: bool) -> Order:
    """Computed here if it is not stored; takes as long as it needs."""
    stored = version.row_orders.filter(key=key, is_made=True).only("pk").first()
    return _order(version, key, stored, is_reversed=is_reversed)


def _order(
    version: DatasetVersion, key: str, stored: RowOrder | None, *, is_reversed: bool
) -> Order:
    order: Order = range
    if stored:
        order = partial(_read_stored, stored)
    elif key != "position":
        order = partial(_read_listed, _sorted_positions(version, key))
    if not is_reversed:
        return order
    num_rows = version.num_rows
    return lambda first, last: order(num_rows - last, num_rows - first)[::-1]


def _read_stored(stored: RowOrder, first: int, last: int) -> Sequence[int]:
    return read_positions(stored, "positions", first, last - first)


def _read_listed(listed: np.ndarray, first: int, last: int) -> Sequence[int]:
    part: list[int] = listed[first:last].tolist()
    return part


def make_order(order_id: int, _report: object = None) -> None:
    """Store the order by a single SQL statement: there is no progress to report."""
    order = (
        RowOrder.objects.select_related("version").defer("positions").get(pk=order_id)
    )
    if not order.is_made:
        positions = _sorted_positions(order.version, order.key).tobytes()
        RowOrder.objects.filter(pk=order_id).update(positions=positions, is_made=True)


def _sorted_positions(version: DatasetVersion, key: str) -> np.ndarray:
    """Rows without a value come last; equal values are sorted by position."""
    if key.startswith(COLUMN):
        # As jsonb: numbers by their size, before texts.
        by, values = "columns #> %s", [version.path_of(key.removeprefix(COLUMN))]
    else:
        by, values = _EXPRESSIONS[key], []
    table = "datasets_datasetrow WHERE version_id = %s"
    sql = f"SELECT position FROM {table} ORDER BY {by} NULLS LAST, position"  # nosec B608 # noqa: S608 - `by` is ours
    with connection.cursor() as cursor:
        cursor.execute(sql, [version.pk, *values])
        rows = (position for (position,) in cursor)
        return np.fromiter(rows, BYTES, count=version.num_rows)


Condition = tuple[str, list[Any]]
Match = tuple[int, int]  # an index in the order, and the row's position

SEARCH_SECONDS = 0.5
COUNT_SECONDS = 0.25
FIRST_WINDOW = 64
LARGEST_WINDOW = 50_000
QUICK_SECONDS = 0.03  # after a faster query, the window grows
SLOW_SECONDS = 0.12


@dataclass(kw_only=True, slots=True)
class Search:
    """The rows of a version for which all conditions hold."""

    version: DatasetVersion
    conditions: Sequence[Condition]
    order: Order = range

    def find(self, first: int, last: int, *, at_most: int | None) -> list[Match]:
        """Matching rows at indexes first … last - 1, in their order."""
        positions = self.order(first, last)
        if isinstance(positions, range):
            # Counted from the end, the range runs downwards.
            direction = "ASC" if positions.step > 0 else "DESC"
            selected = self._select(
                "position >= %s AND position <= %s",
                [min(positions), max(positions)],
                # LIMIT NULL is no limit.
                f"ORDER BY position {direction} LIMIT %s",
                [at_most],
            )
            return [(first + positions.index(at), at) for at in selected]
        matching = set(self._select("position = ANY(%s)", [list(positions)]))
        indexes = enumerate(positions, start=first)
        return [(index, at) for index, at in indexes if at in matching][:at_most]

    def _select(
        self, where: str, values: list[Any], tail: str = "", last: Sequence[Any] = ()
    ) -> list[int]:
        wheres, parameters = self._where(where, values)
        sql = f"SELECT position FROM datasets_datasetrow WHERE {wheres} {tail}"  # nosec B608 # noqa: S608 - no user's text
        return [position for (position,) in fetch_all(sql, [*parameters, *last])]

    def count(self, first: int, last: int) -> int:
        """Count matching rows at positions first … last - 1."""
        wheres, parameters = self._where(
            "position >= %s AND position < %s", [first, last]
        )
        sql = f"SELECT count(*) FROM datasets_datasetrow WHERE {wheres}"  # nosec B608 # noqa: S608 - no user's text
        return int(fetch_all(sql, parameters)[0][0])

    def _where(self, where: str, values: list[Any]) -> tuple[str, list[Any]]:
        parts = ["version_id = %s", where, *(sql for sql, _ in self.conditions)]
        parameters = [self.version.pk, *values]
        for _, more in self.conditions:
            parameters += more
        return " AND ".join(f"({part})" for part in parts), parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Matches:
    matches: list[Match]
    first: int  # indexes first … last - 1 were searched
    last: int


def search_forward(
    search: Search, start: int, *, wanted: int, seconds: float
) -> Matches:
    """Return the first matching rows from an index on, within the time."""
    end = search.version.num_rows
    pace = Pace(seconds)
    matches: list[Match] = []
    at = start
    while at < end and len(matches) < wanted and pace.has_time:
        to = min(end, at + pace.window)
        missing = wanted - len(matches)
        with pace:
            part = search.find(at, to, at_most=missing)
        matches += part
        # A full page ends at its last row; the next one starts after it.
        at = part[-1][0] + 1 if len(part) == missing else to
    return Matches(matches=matches, first=start, last=at)


def search_backward(
    search: Search, end: int, *, wanted: int, seconds: float
) -> Matches:
    """Return the last matching rows before an index, within the time."""
    pace = Pace(seconds)
    matches: list[Match] = []
    at = end
    while at > 0 and len(matches) < wanted and pace.has_time:
        start = max(0, at - pace.window)
        with pace:
            part = search.find(start, at, at_most=None)
        matches = part[-(wanted - len(matches)) :] + matches
        at = matches[0][0] if len(matches) == wanted else start
    return Matches(matches=matches, first=at, last=end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """`num_matching` among the first `num_searched` rows of the version."""

    num_matching: int
    num_searched: int
    is_exact: bool


def count_matching(
    search: Search, *, seconds: float, before: Count | None = None
) -> Count:
    """`before`: an earlier count to continue."""
    end = search.version.num_rows
    if not search.conditions:
        return Count(num_matching=end, num_searched=end, is_exact=True)
    pace = Pace(seconds)
    number, at = (before.num_matching, before.num_searched) if before else (0, 0)
    while at < end and pace.has_time:
        to = min(end, at + pace.window)
        with pace:
            number += search.count(at, to)
        at = to
    return Count(num_matching=number, num_searched=at, is_exact=at == end)


class Pace:
    """The window of the next query, from the duration of the previous one."""

    def __init__(self, seconds: float) -> None:
        self.window = FIRST_WINDOW
        self._until = time.monotonic() + seconds
        self._started_at: float | None = None

    @property
    def has_time(self) -> bool:
        """True for the first window, so that every request makes progress."""
        return self._started_at is None or time.monotonic() < self._until

    def __enter__(self) -> None:
        self._started_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        assert self._started_at is not None
        taken = time.monotonic() - self._started_at
        if taken < QUICK_SECONDS:
            self.window = min(LARGEST_WINDOW, self.window * 8)
        elif taken > SLOW_SECONDS:
            self.window = max(1, self.window // 4)
