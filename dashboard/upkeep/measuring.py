"""How much room a team's things take: files on the disk, rows of datasets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from django.db import connection
from django.db.models import BigIntegerField, Q, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.exchange.models import ImportFile
from dashboard.runs.queries import run_directory
from dashboard.samples.models import CompletionBlock
from dashboard.upkeep.models import Use, VersionSize

# Runs that are counted by what was told of them, as long as all of it is there.
TOLD = Q(origin__has_key="num_bytes", completions_deleted_at=None)
COUNT_ROWS = """
    SELECT coalesce(sum(octet_length(prompt) + coalesce(octet_length(answer), 0)
                        + octet_length(columns::text)), 0)
    FROM datasets_datasetrow WHERE version_id = %s
"""


def measure(team: Team) -> Use:
    """Look at all of it, and keep what was found. A stat of each file of its runs."""
    runs = team.runs.values_list("pk", flat=True)
    parts = {
        "runs": sum(folder_bytes(run_directory(pk).path) for pk in runs.iterator()),
        "models": _total(team.published_models),
        "datasets": _count_rows(team),
        "completions": _count_texts(team),
    }
    use, _ = Use.objects.update_or_create(
        team=team, defaults={"parts": parts, "measured_at": timezone.now()}
    )
    return use


def waiting_bytes(team: Team) -> int:
    """Of files that are to become datasets or runs; known at any time."""
    imports = ImportFile.objects.filter(run_import__team=team)
    return _total(team.uploads) + _total(imports)


def told_bytes(team: Team) -> int:
    """Of lines that trainers elsewhere told of runs; known at any time."""
    told = Cast(KT("origin__num_bytes"), BigIntegerField())
    return team.runs.filter(TOLD).aggregate(told=Sum(told))["told"] or 0


def folder_bytes(folder: Path) -> int:
    """A file that has several names is counted once."""
    found = {(stat.st_dev, stat.st_ino): stat.st_size for stat in _stats(folder)}
    return sum(found.values())


def _stats(folder: Path) -> Iterator[os.stat_result]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # not there, or gone meanwhile
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _stats(Path(entry.path))
            else:
                yield entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _count_rows(team: Team) -> int:
    versions = DatasetVersion.objects.filter(dataset__team=team)
    for pk in versions.filter(size=None).values_list("pk", flat=True):
        with connection.cursor() as cursor:
            cursor.execute(COUNT_ROWS, [pk])
            VersionSize.objects.get_or_create(
                version_id=pk, defaults={"num_bytes": cursor.fetchone()[0]}
            )
    return _total(VersionSize.objects.filter(version__dataset__team=team))


def _count_texts(team: Team) -> int:
    """Of the steps that can be searched: all but those of the last minute."""
    runs = team.runs.exclude(TOLD)
    blocks = CompletionBlock.objects.filter(run__in=runs)
    return blocks.aggregate(held=Sum("num_chars"))["held"] or 0


def _total(rows: object) -> int:
    return rows.aggregate(held=Sum("num_bytes"))["held"] or 0  # type: ignore[attr-defined]  # querysets and managers of several models
