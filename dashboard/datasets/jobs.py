"""The kinds of jobs that datasets need: files fetched and imported, rows looked at."""

from __future__ import annotations

from collections.abc import Callable

from dashboard.datasets import splits
from dashboard.datasets.findings import differences, leaks, statistics, token_lengths
from dashboard.datasets.findings.finding import Report
from dashboard.datasets.models import (
    RowOrder,
    TokenLengths,
    VersionDifference,
    VersionLeak,
    VersionSplit,
    VersionStatistics,
)
from dashboard.datasets.rows import orders
from dashboard.jobs.kinds import Kind, register
from dashboard.jobs.runner import Context


def _analysis(make: Callable[[int, Report], None]) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        def report(done: int, total: int) -> None:
            context.progress(done, total, unit="rows")

        make(context.job.target_id, report)

    return run


for name, make in (
    (RowOrder.JOB, orders.make_order),
    (VersionStatistics.JOB, statistics.make_statistics),
    (TokenLengths.JOB, token_lengths.make_token_lengths),
    (VersionDifference.JOB, differences.make_difference),
    (VersionLeak.JOB, leaks.make_leak),
    (VersionSplit.JOB, splits.make_split),
):
    register(
        Kind(name=name, run=_analysis(make), noun="analysis", lane="dataset.analyse")
    )
