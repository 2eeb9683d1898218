"""Leaks between two versions: looked for once, kept, shown a page at a time."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.datasets.analysis.gathering import said
from dashboard.datasets.analysis.leaks import Prints, find_leaks
from dashboard.datasets.analysis.near_duplicates import signature, similarity
from dashboard.datasets.findings.finding import Report, ask, finish, read_all, unheard
from dashboard.datasets.models import DatasetRow, DatasetVersion, VersionLeak
from dashboard.datasets.rows.positions import as_bytes, read_positions
from dashboard.datasets.rows.reading import are_few

ROWS_PER_PAGE = 20
KINDS = {
    "exact": "the same prompt",
    "words": "the same words",
    "near": "nearly the same",
}


def find_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> VersionLeak:
    found, is_new = VersionLeak.objects.defer(*KINDS).get_or_create(
        held_out=held_out,
        trained_on=trained_on,
        defaults={"num_wanted": held_out.num_rows + trained_on.num_rows},
    )
    if is_new and are_few(held_out, trained_on):
        make_leak(found.pk)
        found.refresh_from_db(fields=["result", "num_looked"])
    else:
        ask(found, team_id=held_out.dataset.team_id)
    found.held_out, found.trained_on = held_out, trained_on  # which are at hand
    return found


def make_leak(pk: int, report: Report = unheard) -> None:
    found = VersionLeak.objects.select_related("held_out", "trained_on").get(pk=pk)
    if found.is_done:
        return
    found.num_looked = 0
    held_out, trained_on = (
        _prints(found, found.held_out, report),
        _prints(found, found.trained_on, report),
    )
    leaks = find_leaks(held_out, trained_on)
    for kind in KINDS:
        setattr(found, kind, as_bytes(getattr(leaks, kind)))
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
    finish(found, result, *KINDS)


def _prints(found: VersionLeak, version: DatasetVersion, report: Report) -> Prints:
    prints = Prints(version.num_rows)
    for row in read_all(found, version, range(version.num_rows), report):
        prints.add(row)
    return prints


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A held-out row, and the one that gives it away."""

    held_out: DatasetRow
    trained_on: DatasetRow
    similarity: float | None = None  # of near ones


@dataclass(frozen=True, kw_only=True, slots=True)
class LeakPage:
    pairs: list[Pair]
    kind: str
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.pairs)

    @property
    def previous_start(self) -> int:
        return max(0, self.first - ROWS_PER_PAGE)


def read_leaks(found: VersionLeak, kind: str, start: int) -> LeakPage:
    """Three queries."""
    assert found.result is not None
    total = found.result[kind]
    first = min(start, max(0, total - 1)) // ROWS_PER_PAGE * ROWS_PER_PAGE
    positions = read_positions(found, kind, first * 2, ROWS_PER_PAGE * 2)
    ours = _rows(found.held_out, positions[::2])
    theirs = _rows(found.trained_on, positions[1::2])
    pairs = [_pair(kind, *both) for both in zip(ours, theirs, strict=True)]
    return LeakPage(pairs=pairs, kind=kind, first=first, total=total)


def _rows(version: DatasetVersion, positions: list[int]) -> list[DatasetRow]:
    rows = {row.position: row for row in version.rows.filter(position__in=positions)}
    return [rows[position] for position in positions]


def _pair(kind: str, held_out: DatasetRow, trained_on: DatasetRow) -> Pair:
    share = None
    if kind == "near":
        one = signature(said(held_out.prompt_value))
        other = signature(said(trained_on.prompt_value))
        assert one is not None, "only such were compared"
        assert other is not None, "only such were compared"
        share = float(similarity(one, other))
    return Pair(held_out=held_out, trained_on=trained_on, similarity=share)
