"""Making a backup: rows of one moment, then files, while everything goes on.

Rows come first, as what they name is written before them: a file may be newer than the
rows that tell of it, which is what follows a crash, too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from django.conf import settings
from django.db import connection
from django.utils import timezone

from dashboard.upkeep.backups.archive import Writer, writing
from dashboard.upkeep.backups.faults import BackupFault
from dashboard.upkeep.backups.folder import KEY_FILE, kept_files
from dashboard.upkeep.backups.manifest import (
    FORMAT,
    Manifest,
    TableEntry,
    applied_migrations,
)
from dashboard.upkeep.backups.tables import (
    NOT_KEPT,
    one_snapshot,
    read_columns,
    read_sequences,
    read_server_version,
    write_rows,
)

LAST_BACKUP = "last-backup.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    num_tables: int
    num_rows: int
    num_files: int
    num_bytes: int


def make_backup(path: Path, *, data: Path, with_checkpoints: bool) -> Made:
    """BackupFault where the file cannot be written there, or nothing is to be kept."""
    check_place(path, data)
    check_database()
    with writing(path) as writer:
        manifest = _write_rows(
            writer, path.parent, data=data, with_checkpoints=with_checkpoints
        )
        writer.add_text("backup.json", manifest.model_dump_json(indent=1))
        files = kept_files(data, with_checkpoints=with_checkpoints)
        num_files = sum(writer.add_file(f"data/{name}", file) for name, file in files)
    _note(path, data)
    return Made(
        num_tables=len(manifest.tables),
        num_rows=manifest.num_rows,
        num_files=num_files,
        num_bytes=path.stat().st_size,
    )


def _note(path: Path, data: Path) -> None:
    """For the operators' page; the backup is as good without."""
    made = {
        "made_at": timezone.now().isoformat(),
        "path": str(path),
        "num_bytes": path.stat().st_size,
    }
    with suppress(OSError):
        (data / LAST_BACKUP).write_text(json.dumps(made), encoding="utf-8")


def check_place(path: Path, data: Path) -> None:
    if path.exists():
        raise BackupFault(f"{path} is there already. Give the name of a new file.")
    if not path.parent.is_dir():
        raise BackupFault(f"There is no folder {path.parent}. Make it first.")
    if path.resolve().is_relative_to(data.resolve()):
        raise BackupFault(
            f"{path} is in the data folder, which would be part of itself, and gone "
            "with it. Give a file elsewhere, best on another disk."
        )


def check_database() -> None:
    """A command without the server's environment reaches a new database of its own."""
    if applied_migrations():
        return
    if settings.DATABASE_IS_EMBEDDED:
        reached = f"Cohort's own in {settings.COHORT_DATA}, as DATABASE_URL is not set"
    else:
        where = connection.settings_dict
        reached = f"{where['NAME']} at {where['HOST'] or 'this machine'}"
    raise BackupFault(
        f"The database that was reached has no tables of Cohort: {reached}. Give the "
        "command the environment that the server has; with systemd that is "
        "/etc/cohort/environment."
    )


def _write_rows(
    writer: Writer, beside: Path, *, data: Path, with_checkpoints: bool
) -> Manifest:
    tables = []
    with one_snapshot():
        migrations = applied_migrations()
        for name, columns in read_columns().items():
            if name not in NOT_KEPT:
                num_rows = _write_table(writer, beside, name, columns)
                tables.append(TableEntry(name=name, columns=columns, num_rows=num_rows))
        return Manifest(
            format=FORMAT,
            made_at=timezone.now(),
            postgres=read_server_version(),
            migrations=migrations,
            tables=tables,
            sequences=read_sequences(),
            has_checkpoints=with_checkpoints,
            key_is_inside=(data / KEY_FILE).exists(),
        )


def _write_table(writer: Writer, beside: Path, name: str, columns: list[str]) -> int:
    # A tar file says how long a part is before the part; /tmp is often memory.
    with TemporaryFile(dir=beside) as file:
        num_rows = write_rows(name, columns, file)
        writer.add_stream(f"tables/{name}", file)
    return num_rows
