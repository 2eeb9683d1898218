"""Leaks: prompts of a held-out version that are in the training version as well."""

from __future__ import annotations

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
from dashboard.datasets.analysis.statistics import (
    BAND,
    NUM_HASHES,
    SIMILARITY,
    Hashes,
    hash_of,
    normalized,
    prompt_key,
    prompt_text,
    signature,
    similarity,
)
from dashboard.datasets.models import DatasetRow, DatasetVersion, VersionLeak
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import as_bytes, read_positions, read_rows_in_order
from dashboard.datasets.services import Report, do_nothing

Indices = NDArray[np.int64]
KINDS = {
    "exact": "same prompt",
    "words": "same words",
    "near": "near duplicate",
}
MAX_COMPARED = 100_000  # of each list, 256 bytes a row
# Of a template's thousand prompts all share a band: so many of them are compared.
MAX_CANDIDATES = 16


def find_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> VersionLeak:
    stored = VersionLeak.objects.defer(*KINDS)
    return find(stored, make_leak, held_out=held_out, trained_on=trained_on)


def make_leak(pk: int, report: Report = do_nothing) -> None:
    stored = VersionLeak.objects.select_related("held_out", "trained_on").get(pk=pk)
    if stored.is_done:
        return
    stored.num_looked = 0
    held_out = _fingerprints(stored, stored.held_out, report)
    trained_on = _fingerprints(stored, stored.trained_on, report)
    leaks = find_leaks(held_out, trained_on)
    for kind in KINDS:
        setattr(stored, kind, as_bytes(getattr(leaks, kind)))
    result = {
        **{kind: len(getattr(leaks, kind)) for kind in KINDS},
        "compared": [
            {
                "num_rows": len(prints.compared),
                "num_too_short": prints.num_too_short,
                "every": prints.every,
            }
            for prints in (held_out, trained_on)
        ],
    }
    save_result(stored, result, *KINDS)


def _fingerprints(
    leak: VersionLeak, version: DatasetVersion, report: Report
) -> Fingerprints:
    prints = Fingerprints(version.num_rows)
    for row in read_counted(leak, version, range(version.num_rows), report):
        prints.add(row)
    return prints


class Fingerprints:
    """Hashes and MinHash signatures of a version's prompts."""

    def __init__(self, num_rows: int) -> None:
        self.exact = np.zeros(num_rows, np.uint64)
        self.words = np.zeros(num_rows, np.uint64)
        # Every so-many-th row, so that they come from the whole list.
        self.every = -(-num_rows // MAX_COMPARED)
        self.num_too_short = 0
        self._num_added = 0
        size = -(-num_rows // self.every)
        self._signatures = np.zeros((size, NUM_HASHES), np.uint32)
        self._compared: list[int] = []

    def add(self, row: Row) -> None:
        at, text = self._num_added, prompt_text(row.prompt)
        self.exact[at] = hash_of(prompt_key(row.prompt))
        self.words[at] = hash_of(normalized(text))
        if at % self.every == 0:
            values = signature(text)
            if values is None:
                self.num_too_short += 1
            else:
                self._signatures[len(self._compared)] = values
                self._compared.append(at)
        self._num_added += 1

    @property
    def compared(self) -> Indices:
        return np.array(self._compared, np.int64)

    @property
    def signatures(self) -> NDArray[np.uint32]:
        return self._signatures[: len(self._compared)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaks:
    """[n, 2]: a held-out row, and one that is like it. Each held-out row is in one."""

    exact: Indices
    words: Indices
    near: Indices


def find_leaks(held_out: Fingerprints, trained_on: Fingerprints) -> Leaks:
    exact = _equal(held_out.exact, trained_on.exact)
    words = _equal(held_out.words, trained_on.words)
    near = find_near(held_out.signatures, trained_on.signatures)
    near = np.stack(
        [held_out.compared[near[:, 0]], trained_on.compared[near[:, 1]]], axis=1
    )
    # The words of an exact one are the same, and a near one's may be.
    return Leaks(
        exact=exact,
        words=words[~np.isin(words[:, 0], exact[:, 0])],
        near=near[
            ~np.isin(near[:, 0], words[:, 0]) & ~np.isin(near[:, 0], exact[:, 0])
        ],
    )


def _equal(ours: Hashes, theirs: Hashes) -> Indices:
    """Pair each of ours that is in theirs with the first such one there."""
    values, first = np.unique(theirs, return_index=True)
    at = np.searchsorted(values, ours).clip(max=max(len(values) - 1, 0))
    matches = np.flatnonzero(values[at] == ours) if len(values) else np.zeros(0, int)
    return np.stack([matches, first[at[matches]]], axis=1).astype(np.int64)


def find_near(ours: NDArray[np.uint32], theirs: NDArray[np.uint32]) -> Indices:
    """Pair each of ours that is near to one of theirs with the nearest that was seen.

    Compared are those that agree in a band, up to MAX_CANDIDATES for each band.
    """
    best = np.full(len(ours), -1, np.int64)
    share = np.full(len(ours), SIMILARITY)
    for start in range(0, NUM_HASHES if len(theirs) else 0, BAND):
        keys, others = _keys(ours, start), _keys(theirs, start)
        order = np.argsort(others, kind="stable")
        others = others[order]
        first = np.searchsorted(others, keys, "left")
        last = np.searchsorted(others, keys, "right")
        for nth in range(MAX_CANDIDATES):
            at = np.flatnonzero(first + nth < last)
            if not len(at):
                break
            candidate = order[first[at] + nth]
            alike = (ours[at] == theirs[candidate]).mean(axis=1)
            nearer = (alike > share[at]) | ((best[at] < 0) & (alike >= share[at]))
            best[at[nearer]] = candidate[nearer]
            share[at[nearer]] = alike[nearer]
    matches = np.flatnonzero(best >= 0)
    return np.stack([matches, best[matches]], axis=1)


def _keys(signatures: NDArray[np.uint32], start: int) -> Hashes:
    """Return the band as one value. Its order has no meaning, but is total."""
    band = np.ascontiguousarray(signatures[:, start : start + BAND])
    halves = band.view(np.uint64)
    # Two bands may fall on one key, which costs a comparison and nothing else.
    keys: Hashes = halves[:, 0] * np.uint64(0x9E3779B97F4A7C15) + halves[:, 1]
    return keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A held-out row, and the one that gives it away."""

    held_out: DatasetRow
    trained_on: DatasetRow
    similarity: float | None = None  # of near ones


def read_leaks(leak: VersionLeak, kind: str, start: int) -> ResultPage[Pair]:
    """Three queries."""
    assert leak.result is not None
    total = leak.result[kind]
    first = page_start(start, total)
    positions = read_positions(leak, kind, first * 2, ROWS_PER_PAGE * 2)
    ours = read_rows_in_order(leak.held_out, positions[::2])
    theirs = read_rows_in_order(leak.trained_on, positions[1::2])
    pairs = []
    for held_out, trained_on in zip(ours, theirs, strict=True):
        share = None
        if kind == "near":
            signatures = [
                signature(prompt_text(row.prompt_value))
                for row in (held_out, trained_on)
            ]
            assert signatures[0] is not None, "only such were compared"
            assert signatures[1] is not None, "only such were compared"
            share = float(similarity(signatures[0], signatures[1]))
        pairs.append(Pair(held_out=held_out, trained_on=trained_on, similarity=share))
    return ResultPage(items=pairs, kind=kind, first=first, total=total)
