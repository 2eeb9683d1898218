"""A server made of a backup: all of it, or nothing."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

from django.core.management import call_command
from django.db import transaction
from pydantic import ValidationError

from dashboard.upkeep.backups.archive import read_text, reading, unpack
from dashboard.upkeep.backups.faults import BackupFault
from dashboard.upkeep.backups.folder import KEY_FILE, kept_files
from dashboard.upkeep.backups.manifest import (
    Manifest,
    applied_migrations,
    check_versions,
    migrate_to,
)
from dashboard.upkeep.backups.tables import (
    MADE_BY_MIGRATIONS,
    drop_all_tables,
    empty,
    go_on_after,
    load_rows,
    read_columns,
    tables_with_rows,
)

DRAFT = ".restoring"


def restore_backup(path: Path, *, data: Path) -> Manifest:
    """BackupFault where the file is damaged or too new, or the server not empty."""
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
    return manifest


def check_empty(data: Path) -> None:
    """BackupFault where a person, a run or a file would be mixed with others."""
    tables = tables_with_rows()
    if tables:
        raise BackupFault(
            f"The database is not empty: {_some(tables)} have rows. Restore into a "
            "new one: an empty DATABASE_URL, or an empty COHORT_DATA without one."
        )
    # The key is made by whatever command is first.
    files = [name for name, _ in islice(kept_files(data, with_checkpoints=True), 4)]
    files = [name for name in files if name != KEY_FILE]
    if files:
        raise BackupFault(
            f"The data folder {data} is not empty: it has {', '.join(files[:3])}. Set "
            "COHORT_DATA to a new folder."
        )


def _read_manifest(text: str) -> Manifest:
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BackupFault(
            f"backup.json is not one that this Cohort reads: {error}. Restore with "
            "the Cohort that made it."
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
                f"{table.name} has other columns here than in the backup, though the "
                "migrations are the same. Restore with the Cohort that made it."
            )


def _load(manifest: Manifest, folder: Path) -> None:
    empty(MADE_BY_MIGRATIONS - {"django_migrations"})
    for table in manifest.tables:
        with (folder / table.name).open("rb") as file:
            load_rows(table.name, table.columns, file)
    go_on_after(manifest.sequences)


def _move_files(files: Path, data: Path) -> None:
    for entry in sorted(files.iterdir()) if files.is_dir() else []:
        entry.replace(data / entry.name)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if names[3:] else shown
