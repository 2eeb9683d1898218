"""Migrations leave processes of the release before at work, as an upgrade lasts."""

from __future__ import annotations

import pytest
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

from tests.upgrades.baseline import LEAVES
from tests.upgrades.locks import statements_of
from tests.upgrades.older_processes import find_troubles
from tests.upgrades.test_migrations import keys_of

# (app, migration): what of it may stay; beside it, why nobody minds.
EXCEPTED: dict[tuple[str, str], set[str]] = {}


@pytest.fixture
def loader(db: None) -> MigrationLoader:
    return MigrationLoader(connection)


def statements_for(loader: MigrationLoader, operation: Operation) -> list[str]:
    """What it becomes behind all migrations."""
    migration = migrations.Migration("later", "runs")
    migration.operations = [operation]
    with connection.schema_editor(collect_sql=True, atomic=True) as editor:
        migration.apply(loader.project_state(), editor, collect_sql=True)
    return list(editor.collected_sql)


def test_no_migration_since_the_baseline_troubles_an_older_process(
    loader: MigrationLoader,
) -> None:
    behind = {at for leaf in LEAVES.items() for at in loader.graph.forwards_plan(leaf)}
    found = {
        key: troubles
        for key in keys_of(loader)
        if key not in behind
        and (troubles := set(find_troubles(statements_of(loader, key))))
    }

    assert found == EXCEPTED, (
        "Processes of the release before go on beside it. Give a column null=True or a "
        "db_default, and let go of columns, names and leniency a release later, when "
        "no process that needs them is left."
    )


FLAG = models.BooleanField(default=False)
NAMED = models.CheckConstraint(condition=models.Q(seq__gte=0), name="run_seq_counted")


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("Run", "later", FLAG),
        migrations.AddField("Step", "later", models.TextField(default="")),
        migrations.RemoveField("Run", "notes"),
        migrations.RenameField("Run", "notes", "words"),
        migrations.AlterField("Run", "lease_until", models.DateTimeField()),
        migrations.AddConstraint("Run", NAMED),
        migrations.RenameModel("RunStar", "Star"),
        migrations.DeleteModel("RunStar"),
        migrations.RunSQL('CREATE UNIQUE INDEX named ON "runs_run" ("name")'),
    ],
    ids=lambda operation: operation.describe()[:40],
)
def test_what_would_is_found(loader: MigrationLoader, operation: Operation) -> None:
    assert list(find_troubles(statements_for(loader, operation)))


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AddField("Run", "later", models.BooleanField(null=True)),
        migrations.AddField("Step", "later", models.TextField(db_default="")),
        migrations.AlterField("Run", "name", models.CharField(max_length=300)),
        migrations.AddIndex("Run", models.Index("name", name="runs_by_name")),
        migrations.RemoveConstraint("Run", "run_finished_after_created"),
        migrations.CreateModel(
            "Weather",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("run", models.ForeignKey("runs.Run", models.CASCADE)),
                ("rain", models.FloatField()),
                ("day", models.DateField(unique=True)),
            ],
        ),
    ],
    ids=lambda operation: operation.describe()[:40],
)
def test_what_would_not_is_let_pass(
    loader: MigrationLoader, operation: Operation
) -> None:
    assert not list(find_troubles(statements_for(loader, operation)))
