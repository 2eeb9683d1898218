"""One page of a version's rows, and where the adjacent pages start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row_filters import RowFilterForm, read_rows_in_order
from dashboard.datasets.row_search import (
    COUNT_SECONDS,
    SEARCH_SECONDS,
    Count,
    Matches,
    Search,
    count_matching,
    find_order,
    search_backward,
    search_forward,
)
from dashboard.project.database import read_whole

ROWS_PER_PAGE = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPage:
    rows: list[DatasetRow]
    num_rows: int  # of the version
    page_start: int  # the index at which the page starts
    first: int  # places first … last - 1 were searched
    last: int
    is_full: bool
    is_backward: bool
    is_narrowed: bool
    count: Count | None  # None: of a continued page
    order_is_made: bool
    num_before: int = 0  # rows that are on the page already
    chosen: int | None = None  # the row that was jumped to
    problem: str = ""  # why there was no jump

    @property
    def is_searching(self) -> bool:
        """Time ran out before the page was full."""
        return not (self.is_full or self.is_backward) and self.has_next

    @property
    def is_searching_back(self) -> bool:
        return self.is_backward and not self.is_full and self.has_previous

    @property
    def has_previous(self) -> bool:
        return self.page_start > 0

    @property
    def has_next(self) -> bool:
        return self.last < self.num_rows

    @property
    def num_shown(self) -> int:
        return self.num_before + len(self.rows)

    @property
    def previous_start(self) -> int:
        return max(0, self.page_start - ROWS_PER_PAGE)

    @property
    def last_start(self) -> int:
        """The index at which the last page of all rows begins."""
        return (self.num_rows - 1) // ROWS_PER_PAGE * ROWS_PER_PAGE

    @property
    def summary(self) -> str:
        if not self.is_narrowed:
            rows = f"{self.num_rows:,} row{'' if self.num_rows == 1 else 's'}"
            is_all = self.first == 0 and self.last == self.num_rows
            return rows if is_all else f"{self.first + 1:,}–{self.last:,} of {rows}"
        if self.page_start == 0 and not self.has_next:
            return _matching(self.num_shown)
        if self.count is None or not self.count.num_searched:
            return f"{self.num_shown} shown"
        if self.count.is_exact:
            return f"{self.num_shown} of {_matching(self.count.num_matching)} shown"
        return (
            f"{self.num_shown} of at least {_matching(self.count.num_matching)} shown "
            f"(counted in the first {self.count.num_searched:,} of {self.num_rows:,} "
            "rows)"
        )


def _matching(number: int) -> str:
    return f"{number:,} matching row{'' if number == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageTarget:
    """The page in the URL: rows from an index on, or those before it."""

    start: int = 0
    end: int | None = None  # search backwards from here
    chosen: int | None = None
    problem: str = ""
    # Continues a page whose time ran out, with `num_before` rows, from `resume`.
    resume: int | None = None
    num_before: int = 0


def read_target(
    query: Mapping[str, str], num_rows: int, *, is_view: bool = False
) -> PageTarget:
    """`is_view`: the rows are filtered or sorted, so a row's number is no place."""
    jump = PageTarget()
    if query.get("row", "").strip():
        text = query["row"].strip()
        row = read_whole(text.replace(",", ""), digits=9)
        if row is None or row >= num_rows:
            jump = PageTarget(
                problem=f"Row {text[:20]} does not exist. Rows are numbered 0 to "
                f"{num_rows - 1:,}."
            )
        else:
            jump = PageTarget(start=row // ROWS_PER_PAGE * ROWS_PER_PAGE, chosen=row)
        if jump.problem or not (is_view or "from" in query or "to" in query):
            return jump
    start, end, resume, have = (
        read_whole(query.get(name), digits=9) for name in ("from", "to", "on", "have")
    )
    return PageTarget(
        chosen=jump.chosen,
        start=min(start or 0, num_rows - 1),
        end=min(end, num_rows) if end is not None else None,
        resume=min(resume, num_rows) if resume is not None else None,
        num_before=min(have or 0, ROWS_PER_PAGE - 1),
    )


def read_page(
    version: DatasetVersion, form: RowFilterForm, target: PageTarget
) -> RowPage:
    """Read the rows and their count: two queries, and one for each window."""
    order = find_order(version, form.order_key, is_reversed=form.is_reversed)
    search = Search(version=version, conditions=form.conditions, order=order or range)
    if target.end is not None and target.resume is None:
        matches = search_backward(
            search, target.end, wanted=ROWS_PER_PAGE, seconds=SEARCH_SECONDS
        )
    else:
        start, num_before = target.start, 0
        if target.resume is not None:
            start, num_before = target.resume, target.num_before
        matches = search_forward(
            search, start, wanted=ROWS_PER_PAGE - num_before, seconds=SEARCH_SECONDS
        )
    is_further = target.resume is not None
    return RowPage(
        page_start=matches.first if target.resume is None else target.start,
        is_narrowed=bool(search.conditions),
        rows=read_rows_in_order(version, [position for _, position in matches.matches]),
        num_rows=version.num_rows,
        first=matches.first,
        last=matches.last,
        is_full=len(matches.matches) + target.num_before >= ROWS_PER_PAGE,
        is_backward=target.end is not None,
        count=None if is_further else _count(search, matches, wanted=ROWS_PER_PAGE),
        order_is_made=order is not None,
        num_before=target.num_before,
        chosen=target.chosen,
        problem=target.problem,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchingRows:
    """Matching rows from an index on."""

    rows: list[DatasetRow]
    last: int  # the index at which the next rows start
    is_end: bool
    count: Count


def read_matching(
    version: DatasetVersion, form: RowFilterForm, start: int, *, wanted: int
) -> MatchingRows | None:
    """Within SEARCH_SECONDS. None while a job computes the order."""
    order = find_order(version, form.order_key, is_reversed=form.is_reversed)
    if order is None:
        return None
    search = Search(version=version, conditions=form.conditions, order=order)
    matches = search_forward(search, start, wanted=wanted, seconds=SEARCH_SECONDS)
    return MatchingRows(
        rows=read_rows_in_order(version, [position for _, position in matches.matches]),
        last=matches.last,
        is_end=matches.last >= version.num_rows,
        count=_count(search, matches, wanted=wanted),
    )


def _count(search: Search, matches: Matches, *, wanted: int) -> Count:
    if search.conditions and matches.first == 0 and len(matches.matches) < wanted:
        # Every match so far is on the page.
        return Count(
            num_matching=len(matches.matches),
            num_searched=matches.last,
            is_exact=matches.last == search.version.num_rows,
        )
    return count_matching(search, seconds=COUNT_SECONDS)
