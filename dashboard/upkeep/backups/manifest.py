"""What a backup says of itself, and whether this server can take it."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from pydantic import AwareDatetime, BaseModel, ConfigDict

from dashboard.upkeep.backups.faults import BackupFault
from dashboard.upkeep.backups.tables import read_server_version

FORMAT = 1


class TableEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    columns: list[str]
    num_rows: int


class Manifest(BaseModel):
    """`backup.json`, the first file of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    made_at: AwareDatetime
    postgres: int  # major version
    migrations: list[tuple[str, str]]
    tables: list[TableEntry]
    sequences: dict[str, int]
    has_checkpoints: bool
    key_is_inside: bool  # False: COHORT_SECRET_KEY came from the environment

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


def applied_migrations() -> list[tuple[str, str]]:
    return sorted(MigrationRecorder(connection).applied_migrations())


def check_versions(manifest: Manifest) -> None:
    """BackupFault where it is of a newer Cohort or PostgreSQL than this one."""
    if manifest.format != FORMAT:
        raise BackupFault(
            f"The backup has format {manifest.format}; this Cohort reads {FORMAT}. "
            "Restore it with the Cohort that made it."
        )
    known = MigrationExecutor(connection).loader.disk_migrations or {}
    unknown = [one for one in manifest.migrations if one not in known]
    if unknown:
        raise BackupFault(
            f"The backup was made by a newer Cohort: {_list(unknown)} "
            "are not known here. Install that version, then restore."
        )
    here = read_server_version()
    if manifest.postgres > here:
        raise BackupFault(
            f"The backup is of PostgreSQL {manifest.postgres}, and this server is "
            f"{here}. Restore into {manifest.postgres} or newer."
        )


def migrate_to(migrations: Iterable[tuple[str, str]]) -> None:
    """Make the tables that the backup's rows were in, in a database that has none."""
    wanted = {(app, name) for app, name in migrations}
    executor = MigrationExecutor(connection)
    executor.recorder.ensure_schema()
    whole = executor.migration_plan(
        executor.loader.graph.leaf_nodes(), clean_start=True
    )
    plan = [(m, back) for m, back in whole if (m.app_label, m.name) in wanted]
    executor.migrate([], plan=plan)


def _list(migrations: list[tuple[str, str]]) -> str:
    shown = ", ".join(f"{app}.{name}" for app, name in migrations[:3])
    return f"{shown} and {len(migrations) - 3} more" if migrations[3:] else shown
