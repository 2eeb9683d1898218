"""A version's statistics: found once, kept."""

from __future__ import annotations

from dashboard.datasets.analysis.gathering import Gatherer
from dashboard.datasets.findings.finding import Report, ask, finish, read_all, unheard
from dashboard.datasets.models import DatasetVersion, VersionStatistics
from dashboard.datasets.rows.reading import are_few


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
