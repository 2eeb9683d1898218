"""Looks through a version's rows: asked for by a page, found by a job, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dashboard.datasets.analysis.statistics import Gatherer
from dashboard.datasets.models import (
    DatasetVersion,
    Finding,
    TokenLengths,
    VersionStatistics,
)
from dashboard.datasets.row import Row
from dashboard.datasets.row_filters import are_few, read_rows_at
from dashboard.datasets.token_preview import Uncountable, count_tokens
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import (
    enqueue_few,
    is_worth_asking,
    newest_job,
    waiting_reason,
)

REPORT_ROWS = 200
# Called with the rows looked at so far and how many there are.
Report = Callable[[int, int], object]


def unheard(_done: int, _total: int) -> None:
    """For what is found while a page is made."""


def ask_again(found: Finding, *, team_id: int) -> None:
    """What failed may have been mended since."""
    failed = newest_job(found.JOB, found.pk)
    if found.problem or (failed and failed.state == JobState.FAILED):
        type(found)._default_manager.filter(pk=found.pk).update(problem="")
        found.problem = ""
        enqueue_few(found.JOB, found.pk, team_id=team_id)


def ask(found: Finding, *, team_id: int) -> None:
    """Have it found, unless it is; how far that is, and why it waits."""
    if found.is_done or found.problem:
        return
    job = newest_job(found.JOB, found.pk)
    if is_worth_asking(job):
        job = enqueue_few(found.JOB, found.pk, team_id=team_id)
    if job is None:
        found.waiting_text = (
            "Your team has as many analyses waiting as it may. Keep this page open, "
            "or come back later."
        )
    elif job.state == JobState.FAILED:
        found.problem = job.error
    else:
        found.num_looked = job.done
        found.waiting_text = waiting_reason(job)


def read_all(
    found: Finding, version: DatasetVersion, wanted: range, report: Report
) -> Iterator[Row]:
    """The wanted rows, counted."""
    for row in read_rows_at(version.rows.all(), wanted):
        found.num_looked += 1
        yield row.as_row()
        if found.num_looked % REPORT_ROWS == 0:
            report(found.num_looked, found.num_wanted)


def finish(found: Finding, result: Mapping[str, object], *more: str) -> None:
    found.result = dict(result)
    found.save(update_fields=["result", "num_looked", "num_wanted", *more])


# A version's statistics: found once, kept.


def find_statistics(version: DatasetVersion) -> VersionStatistics:
    """The version's; asked for at the first look."""
    found, is_new = VersionStatistics.objects.get_or_create(
        version=version, defaults={"num_wanted": version.num_rows}
    )
    if is_new and are_few(version):
        make_statistics(found.pk)
        found.refresh_from_db()
    else:
        ask(found, team_id=version.dataset.team_id)
    return found


def make_statistics(pk: int, report: Report = unheard) -> None:
    found = VersionStatistics.objects.select_related("version").get(pk=pk)
    if found.is_done:
        return
    found.num_looked = 0
    gatherer = Gatherer(found.version.num_rows)
    wanted = range(found.version.num_rows)
    for row in read_all(found, found.version, wanted, report):
        gatherer.add(row)
    if gatherer.num_added != gatherer.num_rows:
        # Whoever reached into the database; freezing such a version fails as well.
        VersionStatistics.objects.filter(pk=pk).update(
            problem=f"{found.version} has {gatherer.num_added:,} rows in the database, "
            f"but was imported with {gatherer.num_rows:,}. Import it again as a new "
            "version."
        )
        return
    finish(found, gatherer.result())


# How long a version's prompts are in a model's tokens: counted once, kept.

MAX_TOKENIZED = 50_000


def find_token_lengths(version: DatasetVersion, model: str) -> TokenLengths:
    found, _ = TokenLengths.objects.get_or_create(
        version=version,
        model=model,
        defaults={"num_wanted": min(version.num_rows, MAX_TOKENIZED)},
    )
    ask(found, team_id=version.dataset.team_id)
    return found


def make_token_lengths(pk: int, report: Report = unheard) -> None:
    found = TokenLengths.objects.select_related("version").get(pk=pk)
    if found.is_done or found.problem:
        return
    every = -(-found.version.num_rows // MAX_TOKENIZED)
    wanted = range(0, found.version.num_rows, every)
    found.num_wanted, found.num_looked = len(wanted), 0
    rows = read_all(found, found.version, wanted, report)
    try:
        lengths = count_tokens(found.model, rows)
    except Uncountable as error:
        TokenLengths.objects.filter(pk=pk).update(problem=str(error))
        return
    result = {"lengths": sorted(lengths.items()), "every": every}
    finish(found, result)
