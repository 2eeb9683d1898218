"""Analyses of versions: requested by a page, computed by a job, stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import QuerySet

from dashboard.datasets.analysis.statistics import RowStatistics
from dashboard.datasets.models import (
    Analysis,
    DatasetVersion,
    TokenLengths,
    VersionStatistics,
)
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import are_few, read_rows_at
from dashboard.datasets.services import Report, do_nothing
from dashboard.datasets.token_preview import Uncountable, count_tokens
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import (
    enqueue_few,
    newest_job,
    should_enqueue,
    waiting_reason,
)

REPORT_ROWS = 200
NUMBERS = frozenset({"integer", "decimal", "fraction", "percentage"})
FEW = 0.2  # of the answers: the others say what they should be
MAX_TOKENIZED = 50_000
ROWS_PER_PAGE = 20
_Analysis = TypeVar("_Analysis", bound=Analysis)
_Item = TypeVar("_Item")


def find_statistics(version: DatasetVersion) -> VersionStatistics:
    return find(VersionStatistics.objects.all(), make_statistics, version=version)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """A doubt about rows, and the first such row; None where the result has none."""

    text: str
    row: int | None


def remark_on(version: DatasetVersion) -> list[Remark]:
    """List what the statistics find odd, once they are there."""
    result = find_statistics(version).result
    if result is None:
        return []
    types = dict(result["answer_types"])
    others = [name for name in types if name not in NUMBERS]
    num_others = sum(types[name] for name in others)
    remarks = []
    if 0 < num_others <= FEW * sum(types.values()):
        first_of = result.get("first_of_types", {})  # not of an older version
        rows = [first_of[name] for name in others if name in first_of]
        noun = "answer is" if num_others == 1 else "answers are"
        text = f"{num_others:,} {noun} not a number"
        remarks.append(Remark(text=text, row=min(rows, default=None)))
    for kind, one, several in (
        ("same_row", "row repeats", "rows repeat"),
        ("same_prompt", "row has an earlier prompt", "rows have an earlier prompt"),
        ("near", "row is nearly equal to another", "rows are nearly equal to others"),
    ):
        if number := result[kind]["num_more"]:
            text = f"{number:,} {one if number == 1 else several}"
            remarks.append(Remark(text=text, row=result[kind]["shown"][0][1]))
    return remarks


def find_token_lengths(version: DatasetVersion, model: str) -> TokenLengths:
    lengths, _ = TokenLengths.objects.get_or_create(
        version=version,
        model=model,
        defaults={"num_wanted": min(version.num_rows, MAX_TOKENIZED)},
    )
    request(lengths, team_id=version.dataset.team_id)
    return lengths


def find(
    stored: QuerySet[_Analysis],
    make: Callable[[int], None],
    **versions: DatasetVersion,
) -> _Analysis:
    """Return the stored analysis; compute a new one of few rows at once."""
    num_rows = sum(version.num_rows for version in versions.values())
    analysis, is_new = stored.get_or_create(
        **versions, defaults={"num_wanted": num_rows}
    )
    if is_new and are_few(*versions.values()):
        make(analysis.pk)
        analysis.refresh_from_db(fields=["result", "num_looked", "problem"])
    else:
        first = next(iter(versions.values()))
        request(analysis, team_id=first.dataset.team_id)
    for name, version in versions.items():
        setattr(analysis, name, version)  # avoids a query
    return analysis


def request(analysis: Analysis, *, team_id: int) -> None:
    """Enqueue it unless it is done; set its progress and why it waits."""
    if analysis.is_done or analysis.problem:
        return
    job = newest_job(analysis.JOB, analysis.pk)
    if should_enqueue(job):
        job = enqueue_few(analysis.JOB, analysis.pk, team_id=team_id)
    if job is None:
        analysis.waiting_text = (
            "Your team's queue of analyses is full. Keep this page open, or come back "
            "later."
        )
    elif job.state == JobState.FAILED:
        analysis.problem = job.error
    else:
        analysis.num_looked = job.done
        analysis.waiting_text = waiting_reason(job)


def retry(analysis: Analysis, *, team_id: int) -> None:
    """Enqueue a failed analysis again."""
    failed = newest_job(analysis.JOB, analysis.pk)
    if analysis.problem or (failed and failed.state == JobState.FAILED):
        type(analysis)._default_manager.filter(pk=analysis.pk).update(problem="")
        analysis.problem = ""
        enqueue_few(analysis.JOB, analysis.pk, team_id=team_id)


def read_counted(
    analysis: Analysis, version: DatasetVersion, positions: range, report: Report
) -> Iterator[Row]:
    """Yield these rows; counted in `num_looked`."""
    for row in read_rows_at(version.rows.all(), positions):
        analysis.num_looked += 1
        yield row.as_row()
        if analysis.num_looked % REPORT_ROWS == 0:
            report(analysis.num_looked, analysis.num_wanted)


def save_result(analysis: Analysis, result: Mapping[str, object], *more: str) -> None:
    analysis.result = dict(result)
    analysis.save(update_fields=["result", "num_looked", "num_wanted", *more])


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPage(Generic[_Item]):
    """Some of a result's rows of one kind."""

    items: list[_Item]
    kind: str
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.items)

    @property
    def previous_start(self) -> int:
        return max(0, self.first - ROWS_PER_PAGE)


def page_start(start: int, total: int) -> int:
    """Return the start of the page with this row, or of the last page."""
    return min(start, max(0, total - 1)) // ROWS_PER_PAGE * ROWS_PER_PAGE


def make_statistics(pk: int, report: Report = do_nothing) -> None:
    analysis = VersionStatistics.objects.select_related("version").get(pk=pk)
    if analysis.is_done:
        return
    analysis.num_looked = 0
    version = analysis.version
    statistics = RowStatistics(version.num_rows)
    for row in read_counted(analysis, version, range(version.num_rows), report):
        statistics.add(row)
    if statistics.num_added != statistics.num_rows:
        # Rows were deleted in the database; such a version cannot be trained on either.
        VersionStatistics.objects.filter(pk=pk).update(
            problem=f"{version} has {statistics.num_added:,} rows in the database, "
            f"but was imported with {version.num_rows:,}. Import it again as a new "
            "version."
        )
        return
    save_result(analysis, statistics.result())


def make_token_lengths(pk: int, report: Report = do_nothing) -> None:
    analysis = TokenLengths.objects.select_related("version").get(pk=pk)
    if analysis.is_done or analysis.problem:
        return
    version = analysis.version
    every = -(-version.num_rows // MAX_TOKENIZED)
    positions = range(0, version.num_rows, every)
    analysis.num_wanted, analysis.num_looked = len(positions), 0
    rows = read_counted(analysis, version, positions, report)
    try:
        lengths = count_tokens(analysis.model, rows)
    except Uncountable as error:
        TokenLengths.objects.filter(pk=pk).update(problem=str(error))
        return
    save_result(analysis, {"lengths": sorted(lengths.items()), "every": every})
