"""Orders of a version's rows: indexes 0, 1, 2 … and the position of the row at each.

Rows never change, so an order is computed once, by a job if there are many rows. A
stored order is an array of positions; a page reads its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from django.db import connection

from dashboard.datasets.models import DatasetVersion, RowOrder
from dashboard.datasets.row_filters import BYTES, COLUMN, PROMPT_CHARS, read_positions
from dashboard.jobs.queue import enqueue_few, newest_job, should_enqueue

# Sorted for each page: takes at most 40 ms.
MAX_SORTED_AT_ONCE = 20_000

_EXPRESSIONS = {
    "prompt_length": PROMPT_CHARS,
    "answer": "CASE WHEN answer_is_list THEN answer::jsonb ->> 0 ELSE answer END",
    # Of several answers the longest counts.
    "answer_length": "CASE WHEN answer_is_list THEN (SELECT max(char_length(one))"
    " FROM jsonb_array_elements_text(answer::jsonb) one) ELSE char_length(answer) END",
}


class Order(Protocol):
    def positions(self, first: int, last: int) -> Sequence[int]:
        """Return the positions of the rows at indexes first … last - 1."""


class ByPosition:
    def positions(self, first: int, last: int) -> range:
        return range(first, last)


@dataclass(frozen=True, slots=True)
class ListedOrder:
    listed: np.ndarray

    def positions(self, first: int, last: int) -> Sequence[int]:
        part: list[int] = self.listed[first:last].tolist()
        return part


@dataclass(frozen=True, slots=True)
class StoredOrder:
    key: int

    def positions(self, first: int, last: int) -> Sequence[int]:
        return read_positions(RowOrder(pk=self.key), "positions", first, last - first)


@dataclass(frozen=True, slots=True)
class ReversedOrder:
    """Another order from its end."""

    order: Order
    num_rows: int

    def positions(self, first: int, last: int) -> Sequence[int]:
        part = self.order.positions(self.num_rows - last, self.num_rows - first)
        return part[::-1]


def find_order(version: DatasetVersion, key: str, *, is_reversed: bool) -> Order | None:
    """Find the order; None while a job computes it."""
    order: Order
    if key == "position":
        order = ByPosition()
    elif version.num_rows <= MAX_SORTED_AT_ONCE:
        order = ListedOrder(_sorted_positions(version, key))
    else:
        stored, _ = RowOrder.objects.defer("positions").get_or_create(
            version=version, key=key
        )
        if not stored.is_made:
            if should_enqueue(newest_job(stored.JOB, stored.pk)):
                # If the queue is full, the next page view tries again.
                enqueue_few(stored.JOB, stored.pk, team_id=version.dataset.team_id)
            return None
        order = StoredOrder(stored.pk)
    return ReversedOrder(order, version.num_rows) if is_reversed else order


def compute_order(version: DatasetVersion, key: str, *, is_reversed: bool) -> Order:
    """Computed here if it is not stored; takes as long as it needs."""
    order: Order
    stored = version.row_orders.filter(key=key, is_made=True).only("pk").first()
    if key == "position":
        order = ByPosition()
    elif stored:
        order = StoredOrder(stored.pk)
    else:
        order = ListedOrder(_sorted_positions(version, key))
    return ReversedOrder(order, version.num_rows) if is_reversed else order


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
