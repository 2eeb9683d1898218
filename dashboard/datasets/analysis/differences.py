"""How two versions differ: which rows were added, removed or changed."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.datasets.analysis.results import (
    ROWS_PER_PAGE,
    ResultPage,
    find,
    page_start,
    read_counted,
    save_result,
)
from dashboard.datasets.analysis.statistics import Hashes, hash_of, prompt_key
from dashboard.datasets.models import (
    Analysis,
    DatasetRow,
    DatasetVersion,
    VersionDifference,
)
from dashboard.datasets.row_filters import as_bytes, read_positions, read_rows_in_order
from dashboard.datasets.services import Report, do_nothing

KINDS = {"changed": "changed", "added": "added", "removed": "removed"}
POSITIONS = ("removed", "added", "changed")  # of VersionDifference

Indices = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def find_difference(old: DatasetVersion, new: DatasetVersion) -> VersionDifference:
    stored = VersionDifference.objects.defer(*POSITIONS)
    return find(stored, make_difference, old=old, new=new)


def make_difference(pk: int, report: Report = do_nothing) -> None:
    stored = VersionDifference.objects.select_related("old", "new").get(pk=pk)
    if stored.is_done:
        return
    stored.num_looked = 0
    old, new = _hashes(stored, stored.old, report), _hashes(stored, stored.new, report)
    difference = compare(*old, *new)
    for name in POSITIONS:
        setattr(stored, name, as_bytes(getattr(difference, name)))
    result = {
        **{name: len(getattr(difference, name)) for name in POSITIONS},
        "same": difference.num_same,
        "moved": difference.num_moved,
    }
    save_result(stored, result, *POSITIONS)


def _hashes(
    analysis: Analysis, version: DatasetVersion, report: Report
) -> tuple[Hashes, Hashes]:
    """Hash the version's rows, and their prompts."""
    rows = np.zeros(version.num_rows, np.uint64)
    prompts = np.zeros(version.num_rows, np.uint64)
    positions = range(version.num_rows)
    for at, row in enumerate(read_counted(analysis, version, positions, report)):
        rows[at] = hash_of(row.canonical())
        prompts[at] = hash_of(prompt_key(row.prompt))
    return rows, prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Positions. A row counts as often as it occurs, and its place does not matter."""

    removed: Indices  # of the old rows
    added: Indices  # of the new ones
    # [n, 2]: an old row and the new one of the same prompt, otherwise changed.
    changed: Indices
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


def _pair(ours: Hashes, theirs: Hashes) -> tuple[Indices, Indices]:
    """Indices of equal values, the first of each with one another, and so on."""
    _, at_ours, at_theirs = np.intersect1d(
        _numbered(ours), _numbered(theirs), assume_unique=True, return_indices=True
    )
    return at_ours, at_theirs


def _numbered(hashes: Hashes) -> Hashes:
    """Hashes of (value, how many equal ones came before): all different."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    indices = np.arange(len(hashes))
    before = indices - np.maximum.accumulate(np.where(is_first, indices, 0))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A row of each version, or of one only."""

    old: DatasetRow | None
    new: DatasetRow | None

    @property
    def row(self) -> DatasetRow:
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def has_other_answer(self) -> bool:
        return bool(self.old and self.new) and (
            self.old.answer_value != self.new.answer_value  # type: ignore[union-attr]  # both are there
        )

    @property
    def changed_columns(self) -> list[tuple[str, object, object]]:
        if not (self.old and self.new):
            return []
        names = dict.fromkeys([*self.old.ordered_columns, *self.new.ordered_columns])
        pairs = ((n, self.old.columns.get(n), self.new.columns.get(n)) for n in names)
        return [(name, old, new) for name, old, new in pairs if old != new]


def read_changes(
    difference: VersionDifference, kind: str, start: int
) -> ResultPage[Change]:
    """Three queries at most."""
    assert difference.result is not None
    total = difference.result[kind]
    first = page_start(start, total)
    width = 2 if kind == "changed" else 1
    positions = read_positions(difference, kind, first * width, ROWS_PER_PAGE * width)
    old, new = positions, positions
    if kind == "changed":
        old, new = positions[::2], positions[1::2]
    no_rows: list[None] = [None] * len(positions)
    olds = no_rows if kind == "added" else read_rows_in_order(difference.old, old)
    news = no_rows if kind == "removed" else read_rows_in_order(difference.new, new)
    changes = [Change(old=a, new=b) for a, b in zip(olds, news, strict=True)]
    return ResultPage(items=changes, kind=kind, first=first, total=total)
