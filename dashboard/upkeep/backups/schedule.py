"""Backups in a folder, one after the other, of which the newest are kept."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dashboard.upkeep.backups.faults import BackupFault

_NAME = re.compile(r"cohort-(\d{8}T\d{6}Z)\.tar")
_FORMAT = "%Y%m%dT%H%M%SZ"
# How long after a failure the next try is made.
RETRY = timedelta(minutes=10)
# A file that is being written has been written to since.
ABANDONED = timedelta(hours=1)


def list_backups(folder: Path) -> list[Path]:
    """The oldest first; files of other names are nobody's business here."""
    if not folder.is_dir():
        raise BackupFault(f"There is no folder {folder}. Make it first.")
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=_made_at)


def name_backup(folder: Path, now: datetime) -> Path:
    return folder / f"cohort-{now.astimezone(UTC):{_FORMAT}}.tar"


def delete_old_backups(folder: Path, *, keep: int) -> list[Path]:
    """All but the newest `keep`; those that went."""
    old = list_backups(folder)[:-keep]
    for path in old:
        path.unlink()
    return old


def delete_abandoned_parts(folder: Path, now: datetime) -> None:
    """What a backup that was killed left behind."""
    for path in folder.glob("cohort-*.tar.partial"):
        written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        if now - written_at > ABANDONED:
            path.unlink()


def find_wait(folder: Path, *, every: timedelta, now: datetime) -> timedelta:
    """Until the next is due: at once where there is none, or an old one."""
    backups = list_backups(folder)
    if not backups:
        return timedelta()
    # A file of the future would make no backup for as long.
    age = max(now - _made_at(backups[-1]), timedelta())
    return max(every - age, timedelta())


def _made_at(path: Path) -> datetime:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return datetime.strptime(found[1], _FORMAT).replace(tzinfo=UTC)
