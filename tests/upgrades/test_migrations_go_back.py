"""Migrations can be undone: a filled database goes back to nothing, and forth again."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from dashboard.runs.models import Run
from tests.upgrades.filling import Filler
from tests.upgrades.test_migrations import OURS

# (app, migration): why it cannot be undone. Whoever adds one says so in CHANGELOG.md.
IRREVERSIBLE: dict[tuple[str, str], str] = {}
pytestmark = pytest.mark.slow


def test_only_what_is_listed_cannot_be_undone(fresh_database: None) -> None:
    nodes = MigrationLoader(connection).graph.nodes

    stuck = {
        key
        for key, migration in nodes.items()
        if key[0] in OURS and not all(one.reversible for one in migration.operations)
    }

    assert stuck == set(IRREVERSIBLE)


def test_a_filled_database_goes_back_and_forth(fresh_database: None) -> None:
    executor = MigrationExecutor(connection)
    leaves = executor.loader.graph.leaf_nodes()
    executor.migrate(leaves)
    apps = executor.loader.project_state(leaves).apps
    with transaction.atomic():
        Filler(apps).fill()
    targets = [(app, None) for app in OURS]
    for app, name in IRREVERSIBLE:
        targets = [(a, name if a == app else None) for a, _ in targets]

    executor.loader.build_graph()
    executor.migrate(targets)

    tables = set(connection.introspection.table_names())
    gone = {Run._meta.db_table, "samples_group", "accounts_team"}
    assert not tables & gone
    executor.loader.build_graph()
    executor.migrate(executor.loader.graph.leaf_nodes())
    assert not Run.objects.exists()
