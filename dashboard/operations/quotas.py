"""Quotas: the storage that a team uses, and whether it may have more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.db.models import BigIntegerField, Q, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import num_bytes as in_words
from dashboard.completions.models import CompletionBlock
from dashboard.datasets.models import DatasetVersion
from dashboard.operations.models import Quota, Use, VersionSize
from dashboard.project.database import fetch_all
from dashboard.project.errors import UserError
from dashboard.runs.models import ENDED
from dashboard.runs.queries import run_directory
from dashboard.transfers.models import ImportFile

# Runs trained elsewhere, counted by the bytes that were sent, while all of it is there.
EXTERNAL = Q(source__has_key="num_bytes", completions_deleted_at=None)
ASK = "The server's operator can raise the quota."
COUNT_ROWS = """
    SELECT coalesce(sum(octet_length(prompt) + coalesce(octet_length(answer), 0)
                        + octet_length(columns::text)), 0)
    FROM datasets_datasetrow WHERE version_id = %s
"""


def measure(team: Team) -> Use:
    """Measure all of it, and store the result. A stat of each file of its runs."""
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
    """Count bytes of files that are to become datasets or runs; known at any time."""
    imports = ImportFile.objects.filter(run_import__team=team)
    return _total(team.uploads) + _total(imports)


def external_bytes(team: Team) -> int:
    """Count bytes of lines that external trainers sent; known at any time."""
    sent = Cast(KT("source__num_bytes"), BigIntegerField())
    return team.runs.filter(EXTERNAL).aggregate(sent=Sum(sent))["sent"] or 0


def folder_bytes(folder: Path) -> int:
    """Count bytes of a folder; a file that has several names is counted once."""
    sizes = {(stat.st_dev, stat.st_ino): stat.st_size for stat in _stats(folder)}
    return sum(sizes.values())


def _stats(folder: Path) -> Iterator[os.stat_result]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # missing, or deleted in between
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
        ((num_bytes,),) = fetch_all(COUNT_ROWS, [pk])
        VersionSize.objects.get_or_create(
            version_id=pk, defaults={"num_bytes": num_bytes}
        )
    return _total(VersionSize.objects.filter(version__dataset__team=team))


def _count_texts(team: Team) -> int:
    """Count texts of the steps that can be searched: all but those of the last
    minute.
    """
    blocks = CompletionBlock.objects.filter(run__in=team.runs.exclude(EXTERNAL))
    return blocks.aggregate(held=Sum("num_chars"))["held"] or 0


def _total(rows: object) -> int:
    return rows.aggregate(held=Sum("num_bytes"))["held"] or 0  # type: ignore[attr-defined]  # querysets and managers of several models


# What a team may have: checked through dashboard.accounts.members.


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaUsage:
    """The usage of a team, and its limits."""

    parts: dict[str, int]
    measured_at: datetime
    max_bytes: int | None
    num_runs: int
    max_runs: int | None

    @property
    def num_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def is_full(self) -> bool:
        return self.max_bytes is not None and self.num_bytes >= self.max_bytes


def quota_usage(team: Team) -> QuotaUsage:
    use = Use.objects.filter(team=team).first() or measure(team)
    quota = Quota.objects.filter(team=team).first() or Quota(team=team)
    return QuotaUsage(
        parts={
            **use.parts,
            "outside": external_bytes(team),
            "waiting": waiting_bytes(team),
        },
        measured_at=use.measured_at,
        max_bytes=quota.max_bytes,
        num_runs=team.runs.exclude(state__in=ENDED).count(),
        max_runs=quota.max_runs,
    )


def check_storage(team: Team, num_bytes: int, *, purpose: str) -> None:
    """ValueError where so much more is beyond the quota, or it is reached already."""
    if not Quota.objects.filter(team=team, max_bytes__isnull=False).exists():
        return
    usage = quota_usage(team)
    assert usage.max_bytes is not None
    if usage.is_full or usage.num_bytes + num_bytes > usage.max_bytes:
        needs = f"needs {in_words(num_bytes)}" if num_bytes else "needs free storage"
        raise UserError(
            "quotas.storage",
            f"{team} uses {in_words(usage.num_bytes)} of its "
            f"{in_words(usage.max_bytes)} of storage; {purpose} {needs}. Delete "
            f"runs, checkpoints, models or datasets, and empty the trash. {ASK}",
        )


def check_runs(team: Team) -> None:
    """ValueError where the team has as many runs at once as it may.

    Two launches at the same time wait for each other where there is a quota.
    """
    quota = Quota.objects.select_for_update().filter(team=team).first()
    if quota is None:
        return
    num_runs = team.runs.exclude(state__in=ENDED).count()
    if quota.max_runs is not None and num_runs >= quota.max_runs:
        raise UserError(
            "quotas.runs",
            f"{team} has {num_runs:,} runs that have not ended; its quota is "
            f"{quota.max_runs:,}. Wait for one to end, or stop one. {ASK}",
        )
    check_storage(team, 0, purpose="a run")
