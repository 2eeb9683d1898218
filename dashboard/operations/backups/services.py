"""Creates, restores and deletes backups.

A backup is made while Cohort runs: first a snapshot of the rows, then files, since
files are written before the rows that name them. A file may be newer than its rows, as
after a crash.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone
from pydantic import ValidationError

from dashboard.alerts.models import Channel
from dashboard.operations.backups.archive import (
    FORMAT,
    BackupFault,
    Manifest,
    TableEntry,
    Writer,
    applied_migrations,
    check_versions,
    first_three,
    migrate_to,
    read_text,
    reading,
    unpack,
    writing,
)
from dashboard.operations.backups.tables import (
    KEY_FILE,
    MADE_BY_MIGRATIONS,
    SKIPPED_TABLES,
    delete_rows,
    drop_all_tables,
    list_files,
    load_rows,
    one_snapshot,
    read_columns,
    read_sequences,
    read_server_version,
    restore_sequences,
    tables_with_rows,
    write_rows,
)
from dashboard.runs.models import ENDED, Run

LAST_BACKUP = "last-backup.json"
DRAFT = ".restoring"
NAME = re.compile(r"cohort-(\d{8}T\d{6}Z)\.tar")
TIME_FORMAT = "%Y%m%dT%H%M%SZ"
RETRY = timedelta(minutes=10)  # after a failure
ABANDONED = timedelta(hours=1)  # since a partial file was last written to


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupSummary:
    num_tables: int
    num_rows: int
    num_files: int
    num_bytes: int


def make_backup(path: Path, *, data: Path, with_checkpoints: bool) -> BackupSummary:
    """BackupFault if the file cannot be written, or no backup would be kept."""
    check_place(path, data)
    check_database()
    with writing(path) as writer:
        manifest = _write_rows(
            writer, path.parent, data=data, with_checkpoints=with_checkpoints
        )
        writer.add_text("backup.json", manifest.model_dump_json(indent=1))
        files = list_files(data, with_checkpoints=with_checkpoints)
        num_files = sum(writer.add_file(f"data/{name}", file) for name, file in files)
    _note(path, data)
    return BackupSummary(
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
        raise BackupFault(f"{path} already exists. Pass the name of a new file.")
    if not path.parent.is_dir():
        raise BackupFault(f"Folder {path.parent} not found. Create it first.")
    if path.resolve().is_relative_to(data.resolve()):
        raise BackupFault(
            f"{path} is in the data folder, so the backup would contain itself and "
            "be lost with the data. Pass a file elsewhere, ideally on another "
            "disk."
        )


def check_database() -> None:
    """A command without the server's environment would use a new, empty database."""
    if applied_migrations():
        return
    if settings.DATABASE_IS_EMBEDDED:
        reached = (
            f"the embedded database in {settings.COHORT_DATA}, because DATABASE_URL is "
            "not set"
        )
    else:
        where = connection.settings_dict
        reached = f"{where['NAME']} at {where['HOST'] or 'this machine'}"
    raise BackupFault(
        f"The database has no Cohort tables: {reached}. Run the command with the "
        "server's environment (systemd: /etc/cohort/environment)."
    )


def _write_rows(
    writer: Writer, beside: Path, *, data: Path, with_checkpoints: bool
) -> Manifest:
    tables = []
    with one_snapshot():
        migrations = applied_migrations()
        for name, columns in read_columns().items():
            if name not in SKIPPED_TABLES:
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
    # A tar file states a part's length before the part; /tmp is often in memory.
    with TemporaryFile(dir=beside) as file:
        num_rows = write_rows(name, columns, file)
        writer.add_stream(f"tables/{name}", file)
    return num_rows


# Restoring: all of it, or nothing.


def restore_backup(path: Path, *, data: Path, takes_over: bool) -> Manifest:
    """BackupFault where the file is damaged or too new, or the server not empty.

    Unless it takes over from the server of the backup, its runs are held and nothing is
    sent to its channels: that server may do both.
    """
    draft = data / DRAFT
    try:
        with reading(path) as tar:
            manifest = _read_manifest(read_text(tar, "backup.json"))
            check_versions(manifest)
            check_empty(data)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o700, parents=True)
            unpack(tar, draft)
        _make_tables(manifest)
        with transaction.atomic():
            _load(manifest, draft / "tables")
            _move_files(draft / "data", data)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    call_command("migrate", interactive=False, verbosity=0)
    if not takes_over:
        Run.objects.filter(source={}).exclude(state__in=ENDED).update(on_hold=True)
        why = "A backup was restored on this server."
        Channel.objects.filter(is_enabled=True).update(is_enabled=False, gave_up=why)
    return manifest


def check_empty(data: Path) -> None:
    """BackupFault where a person, a run or a file would be mixed with others."""
    tables = tables_with_rows()
    if tables:
        raise BackupFault(
            f"The database is not empty: {first_three(tables)} have rows. Restore "
            "into an empty one: set DATABASE_URL to an empty database, or unset "
            "it and use an empty COHORT_DATA."
        )
    # The first command of any kind creates the key.
    files = [name for name, _ in islice(list_files(data, with_checkpoints=True), 4)]
    files = [name for name in files if name != KEY_FILE]
    if files:
        raise BackupFault(
            f"The data folder {data} is not empty: it contains "
            f"{', '.join(files[:3])}. Set COHORT_DATA to a new folder."
        )


def _read_manifest(text: str) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BackupFault(
            f"This version of Cohort cannot read backup.json: {error}. Restore "
            "with the version that made the backup."
        ) from error


def _make_tables(manifest: Manifest) -> None:
    wanted = sorted((app, name) for app, name in manifest.migrations)
    if applied_migrations() != wanted:
        drop_all_tables()
        migrate_to(wanted)
    columns = read_columns()
    for table in manifest.tables:
        if sorted(table.columns) != sorted(columns.get(table.name, [])):
            raise BackupFault(
                f"The columns of {table.name} differ from the backup, although the "
                "migrations match. Restore with the version of Cohort that made "
                "the backup."
            )


def _load(manifest: Manifest, folder: Path) -> None:
    delete_rows(MADE_BY_MIGRATIONS - {"django_migrations"})
    for table in manifest.tables:
        with (folder / table.name).open("rb") as file:
            load_rows(table.name, table.columns, file)
    restore_sequences(manifest.sequences)


def _move_files(files: Path, data: Path) -> None:
    for entry in sorted(files.iterdir()) if files.is_dir() else []:
        entry.replace(data / entry.name)


# Backups in a folder, of which the newest are kept.


def list_backups(folder: Path) -> list[Path]:
    """Oldest first; other files in the folder are ignored."""
    if not folder.is_dir():
        raise BackupFault(f"Folder {folder} not found. Create it first.")
    found = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    return sorted(found, key=_made_at)


def name_backup(folder: Path, now: datetime) -> Path:
    return folder / f"cohort-{now.astimezone(UTC):{TIME_FORMAT}}.tar"


def delete_old_backups(folder: Path, *, keep: int) -> list[Path]:
    """All but the newest `keep`; those that went."""
    old = list_backups(folder)[:-keep]
    for path in old:
        path.unlink()
    return old


def delete_abandoned_parts(folder: Path, now: datetime) -> None:
    """Incomplete file of a killed backup."""
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
    found = NAME.fullmatch(path.name)
    assert found is not None
    return datetime.strptime(found[1], TIME_FORMAT).replace(tzinfo=UTC)
