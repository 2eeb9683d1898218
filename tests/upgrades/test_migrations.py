"""Migrations are one line for each app, and keep nobody from working for long."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from tests.upgrades.baseline import KNOWN, LEAVES
from tests.upgrades.locks import (
    find_faults,
    runs_python_beside_schema,
    statements_of,
)

Key = tuple[str, str]
OURS = {
    config.label
    for config in apps.get_app_configs()
    if config.name.startswith("dashboard.")
}


@pytest.fixture
def loader(db: None) -> MigrationLoader:
    return MigrationLoader(connection)


def keys_of(loader: MigrationLoader) -> list[Key]:
    return sorted(key for key in loader.graph.nodes if key[0] in OURS)


def test_each_app_has_one_line_of_migrations(loader: MigrationLoader) -> None:
    for app in {key[0] for key in keys_of(loader)}:
        assert len(loader.graph.leaf_nodes(app)) == 1, app
        assert len(loader.graph.root_nodes(app)) == 1, app
    for key in keys_of(loader):
        before = [p for p in loader.graph.nodes[key].dependencies if p[0] == key[0]]
        assert len(before) == (0 if "0001" in key[1] else 1), f"{key} after {before}"


def test_the_baseline_names_migrations_that_are_there(loader: MigrationLoader) -> None:
    assert set(LEAVES.items()) <= set(keys_of(loader))
    assert set(KNOWN) <= set(keys_of(loader))


def test_no_migration_holds_a_large_table_for_long(loader: MigrationLoader) -> None:
    found: dict[Key, set[str]] = {}
    for key in keys_of(loader):
        faults = set(find_faults(statements_of(loader, key)))
        if runs_python_beside_schema(loader, key):
            faults.add("Python beside a change of the schema")
        if faults:
            found[key] = faults

    assert found == KNOWN, (
        "Do it in steps: add the column without a default that has to be computed, "
        "fill it in a migration of its own (atomic = False, some rows at a time, so "
        "that it may be run again), build the index with AddIndexConcurrently, add the "
        "constraint NOT VALID and validate it in the migration behind."
    )


def test_what_is_excepted_is_behind_us() -> None:
    for app, name in KNOWN:
        assert name <= LEAVES[app]


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE "runs_step" ALTER COLUMN "step" TYPE bigint USING "step"::bigint;',
        'ALTER TABLE "runs_step" ADD COLUMN "key" uuid DEFAULT gen_random_uuid();',
        'ALTER TABLE "runs_step" ADD COLUMN "n" int GENERATED ALWAYS AS IDENTITY;',
        'CREATE INDEX "named" ON "samples_group" ("run_id");',
        'CREATE UNIQUE INDEX "named" ON "runs_runevent" ("seq") WHERE "seq" > 3;',
        'ALTER TABLE "runs_step" ADD CONSTRAINT "named" CHECK ("step" >= 0);',
        'ALTER TABLE "runs_step" ADD CONSTRAINT "named" UNIQUE ("run_id", "step");',
        'ALTER TABLE "samples_group" ADD CONSTRAINT "named" FOREIGN KEY ("run_id") '
        'REFERENCES "runs_run" ("id") DEFERRABLE INITIALLY DEFERRED;',
        'ALTER TABLE "samples_completion" ALTER COLUMN "reward" SET NOT NULL;',
        "UPDATE samples_completion SET reward = 0",
        "DELETE FROM samples_group",
        '-- Fill\nUPDATE "runs_step" SET "epoch" = 1;',
    ],
)
def test_what_holds_a_large_table_is_found(statement: str) -> None:
    assert list(find_faults([statement]))


@pytest.mark.parametrize(
    "statement",
    [
        'ALTER TABLE "runs_step" ADD COLUMN "epoch" integer NULL;',
        'ALTER TABLE "runs_step" ADD COLUMN "epoch" integer DEFAULT 0 NOT NULL;',
        'ALTER TABLE "runs_step" ADD COLUMN "why" text DEFAULT \'\' NOT NULL;',
        'ALTER TABLE "samples_group" ADD COLUMN "on" boolean DEFAULT true NOT NULL;',
        'ALTER TABLE "samples_group" ALTER COLUMN "answer" DROP NOT NULL;',
        'ALTER TABLE "runs_runevent" ALTER COLUMN "type" TYPE varchar(40);',
        'CREATE INDEX CONCURRENTLY "named" ON "samples_group" ("run_id");',
        'ALTER TABLE "runs_step" ADD CONSTRAINT "named" CHECK ("step" >= 0) NOT VALID;',
        'ALTER TABLE "runs_step" VALIDATE CONSTRAINT "named";',
        'CREATE INDEX "named" ON "accounts_team" ("slug");',
        "UPDATE accounts_team SET name = ''",
    ],
)
def test_what_holds_none_is_let_pass(statement: str) -> None:
    assert not list(find_faults([statement]))


def test_a_table_that_a_migration_makes_is_empty_in_it() -> None:
    create = 'CREATE TABLE "samples_line" ("id" bigint NOT NULL PRIMARY KEY);'
    index = 'CREATE INDEX "named" ON "samples_line" ("id");'

    assert not list(find_faults([create, index]))
    assert list(find_faults([index]))
