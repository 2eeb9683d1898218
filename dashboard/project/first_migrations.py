"""The first migration of each app, which replaces those before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader

Key = tuple[str, str]
# It has the migrations that were squashed since, and applies those that are missing.
LAST_BEFORE_SQUASHING = "the version of 29 November 2026 (git checkout d431cc46)"


def known_migrations() -> Mapping[Key, frozenset[Key]]:
    """Map the migrations of this version to the older ones that each replaces."""
    files = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    return {
        key: frozenset(migration.replaces) - files.keys()
        for key, migration in files.items()
    }


def find_gaps(applied: Collection[Key]) -> list[str]:
    """List the replaced migrations that a database lacks, if it has others of the app.

    This version can neither apply them nor create the app's tables.
    """
    return sorted(
        ".".join(key)
        for replaced in known_migrations().values()
        if not replaced.isdisjoint(applied)
        for key in replaced.difference(applied)
    )


class FirstMigration(Migration):
    """The first migration of an app, which only creates tables and runs SQL.

    Django renders each new model at once, and again all that it refers to, which takes
    longer than creating the tables. Here they are rendered together.
    """

    def apply(self, state: Any, schema_editor: Any, collect_sql: bool = False) -> Any:
        vars(state).pop("apps", None)
        state = self.mutate_state(state, preserve=False)
        for operation in self.operations:
            operation.database_forwards(self.app_label, schema_editor, state, state)
        return state
