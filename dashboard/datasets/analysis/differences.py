"""Rows that differ between two versions, a page of one kind at a time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.datasets.analysis.findings import Report, ask, finish, read_all, unheard
from dashboard.datasets.analysis.statistics import Hashes, hash_of, prompt_key
from dashboard.datasets.models import (
    DatasetRow,
    DatasetVersion,
    Finding,
    VersionDifference,
)
from dashboard.datasets.row_filters import are_few, as_bytes, read_positions

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


# How two lists of rows differ, by the hashes of their rows and of their prompts.

Places = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Positions. A row counts as often as it occurs, and its place does not matter."""

    removed: Places  # of the old rows
    added: Places  # of the new ones
    # [n, 2]: an old row and the new one of the same prompt, otherwise changed.
    changed: Places
    num_same: int
    num_moved: int  # of the same ones: the fewest whose moving explains the order


def compare(
    old_rows: Hashes, old_prompts: Hashes, new_rows: Hashes, new_prompts: Hashes
) -> Difference:
    old_same, new_same = _pair(old_rows, new_rows)
    removed = np.setdiff1d(np.arange(len(old_rows)), old_same, assume_unique=True)
    added = np.setdiff1d(np.arange(len(new_rows)), new_same, assume_unique=True)
    old, new = _pair(old_prompts[removed], new_prompts[added])
    changed = np.stack([removed[old], added[new]], axis=1)
    in_order = new_same[np.argsort(old_same)]
    return Difference(
        removed=np.delete(removed, old),
        added=np.delete(added, new),
        changed=changed[np.argsort(changed[:, 1])],
        num_same=len(old_same),
        num_moved=len(in_order) - _longest_rise(in_order.tolist()),
    )


def _pair(one: Hashes, other: Hashes) -> tuple[Places, Places]:
    """Places of equal values, the first of each with one another, and so on."""
    _, at_one, at_other = np.intersect1d(
        _numbered(one), _numbered(other), assume_unique=True, return_indices=True
    )
    return at_one, at_other


def _numbered(hashes: Hashes) -> Hashes:
    """Hashes of (value, how many equal ones came before): all different."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(hashes))
    before = places - np.maximum.accumulate(np.where(is_first, places, 0))
    numbers = np.empty(len(hashes), np.uint64)
    numbers[order] = before
    return hashes + numbers * _GOLDEN


def _longest_rise(values: list[int]) -> int:
    """Length of the longest rising subsequence: what can stay where it is."""
    ends: list[int] = []
    for value in values:
        at = bisect_left(ends, value)
        if at == len(ends):
            ends.append(value)
        else:
            ends[at] = value
    return len(ends)


# Which rows differ between two versions: found once, kept.

POSITIONS = ("removed", "added", "changed")  # of VersionDifference


def find_difference(old: DatasetVersion, new: DatasetVersion) -> VersionDifference:
    found, is_new = VersionDifference.objects.defer(*POSITIONS).get_or_create(
        old=old,
        new=new,
        defaults={"num_wanted": old.num_rows + new.num_rows},
    )
    if is_new and are_few(old, new):
        make_difference(found.pk)
        found.refresh_from_db(fields=["result", "num_looked"])
    else:
        ask(found, team_id=old.dataset.team_id)
    found.old, found.new = old, new  # which are at hand
    return found


def make_difference(pk: int, report: Report = unheard) -> None:
    found = VersionDifference.objects.select_related("old", "new").get(pk=pk)
    if found.is_done:
        return
    found.num_looked = 0
    old, new = _hashes(found, found.old, report), _hashes(found, found.new, report)
    difference = compare(*old, *new)
    for name in POSITIONS:
        setattr(found, name, as_bytes(getattr(difference, name)))
    result = {
        **{name: len(getattr(difference, name)) for name in POSITIONS},
        "same": difference.num_same,
        "moved": difference.num_moved,
    }
    finish(found, result, *POSITIONS)


def _hashes(
    found: Finding, version: DatasetVersion, report: Report
) -> tuple[Hashes, Hashes]:
    """Of the version's rows, and of their prompts."""
    rows = np.zeros(version.num_rows, np.uint64)
    prompts = np.zeros(version.num_rows, np.uint64)
    wanted = range(version.num_rows)
    for at, row in enumerate(read_all(found, version, wanted, report)):
        rows[at] = hash_of(row.canonical())
        prompts[at] = hash_of(prompt_key(row.prompt))
    return rows, prompts
