"""Rows that differ between two versions, a page of one kind at a time."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.datasets.models import DatasetRow, DatasetVersion, VersionDifference
from dashboard.datasets.rows.positions import read_positions

ROWS_PER_PAGE = 20
KINDS = {"changed": "changed", "added": "added", "removed": "removed"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One row of each version, or of one only."""

    old: DatasetRow | None
    new: DatasetRow | None

    @property
    def row(self) -> DatasetRow:
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def has_other_answer(self) -> bool:
        return bool(self.old and self.new) and self.old.answer != self.new.answer  # type: ignore[union-attr]  # both are there

    @property
    def changed_columns(self) -> list[tuple[str, object, object]]:
        if not (self.old and self.new):
            return []
        names = dict.fromkeys([*self.old.ordered_columns, *self.new.ordered_columns])
        pairs = ((n, self.old.columns.get(n), self.new.columns.get(n)) for n in names)
        return [(name, old, new) for name, old, new in pairs if old != new]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePage:
    changes: list[Change]
    kind: str
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.changes)

    @property
    def previous_start(self) -> int:
        return max(0, self.first - ROWS_PER_PAGE)


def read_changes(found: VersionDifference, kind: str, start: int) -> ChangePage:
    """Three queries at most."""
    assert found.result is not None
    total = found.result[kind]
    first = min(start, max(0, total - 1)) // ROWS_PER_PAGE * ROWS_PER_PAGE
    width = 2 if kind == "changed" else 1
    positions = read_positions(found, kind, first * width, ROWS_PER_PAGE * width)
    if kind == "changed":
        old, new = positions[::2], positions[1::2]
        rows = zip(_rows(found.old, old), _rows(found.new, new), strict=True)
        changes = [Change(old=before, new=after) for before, after in rows]
    elif kind == "added":
        changes = [Change(old=None, new=row) for row in _rows(found.new, positions)]
    else:
        changes = [Change(old=row, new=None) for row in _rows(found.old, positions)]
    return ChangePage(changes=changes, kind=kind, first=first, total=total)


def _rows(version: DatasetVersion, positions: list[int]) -> list[DatasetRow]:
    rows = {row.position: row for row in version.rows.filter(position__in=positions)}
    return [rows[position] for position in positions]
