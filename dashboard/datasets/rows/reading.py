"""Rows in their order, a few at a time: one alone may hold 8 MiB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db.models import (
    BigIntegerField,
    F,
    Func,
    QuerySet,
    RowRange,
    Sum,
    TextField,
    Value,
    Window,
)
from django.db.models.functions import Cast, Coalesce

from dashboard.datasets.models import DatasetRow, DatasetVersion

# Whichever comes first.
ROWS_AT_ONCE, BYTES_AT_ONCE = 500, 2 * 2**20
# What is looked through while a page is made, in a fifth of a second.
MAX_ROWS_OF_PAGE, MAX_BYTES_OF_PAGE = 1_000, 8 * 2**20


def read_rows_at(rows: QuerySet[DatasetRow], positions: range) -> Iterator[DatasetRow]:
    """Those of some rising positions. Memory holds two megabytes, or one row."""
    at = 0
    while at < len(positions):
        part = positions[at : at + ROWS_AT_ONCE]
        at += len(part)  # were none there, by whoever reached into the database
        for row in _first_of(_at(rows, part)):
            at = positions.index(row.position) + 1
            yield row


def _at(rows: QuerySet[DatasetRow], positions: range) -> QuerySet[DatasetRow]:
    if positions.step == 1:
        return rows.filter(
            position__gte=positions[0], position__lte=positions[-1]
        ).order_by("position")
    return rows.filter(position__in=list(positions)).order_by("position")


def _first_of(rows: QuerySet[DatasetRow]) -> QuerySet[DatasetRow]:
    """As many as fit, and one at least; the database adds up how large they are."""
    before = Window(Sum(_size()), order_by="position", frame=RowRange(end=-1))
    return rows.annotate(before=Coalesce(before, 0)).filter(before__lte=BYTES_AT_ONCE)


def are_few(*versions: DatasetVersion, positions: Sequence[int] = ()) -> bool:
    """Whether the rows of these can be looked through while a page is made: all of
    them, or those at some positions."""
    num_rows = len(positions) or sum(version.num_rows for version in versions)
    if num_rows > MAX_ROWS_OF_PAGE:
        return False
    rows = DatasetRow.objects.filter(version__in=versions)
    if positions:
        rows = rows.filter(position__in=positions)
    num_bytes: int = rows.aggregate(sum=Coalesce(Sum(_size()), 0))["sum"]
    return num_bytes <= MAX_BYTES_OF_PAGE


def _size() -> Func:
    """Of a row, in bytes."""
    columns = Cast("columns", TextField())
    texts = (F("prompt"), Coalesce(F("answer"), Value("")), columns)
    num_bytes = BigIntegerField()
    prompt, answer, rest = (
        Func(text, function="octet_length", output_field=num_bytes) for text in texts
    )
    return Cast(prompt + answer + rest, num_bytes)
