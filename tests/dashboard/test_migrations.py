"""A migration keeps no one from working for as long as a large table is large.

It judges the SQL that Django makes of each migration but the first of each app, which
makes the tables.
"""

import re
from collections.abc import Iterable, Iterator

from django.apps import apps
from django.db import connection
from django.db.migrations import RunPython
from django.db.migrations.loader import MigrationLoader

Key = tuple[str, str]
OURS = {
    config.label
    for config in apps.get_app_configs()
    if config.name.startswith("dashboard.")
}
# What grows with each step, event and completion; every other table stays small.
BIG = re.compile(
    r"runs_(step|runevent|rollup|evaluation)"
    r"|samples_(?!(comment|mention|tag|thumb)$)\w+|training_systemsample"
    r"|datasets_datasetrow|accounts_auditentry"
)
NAME = r'"?(?P<table>\w+)"?'
HOLDS = {
    "rewrites every row": (
        rf"ALTER TABLE (ONLY )?{NAME}.*\bALTER COLUMN \S+ (SET DATA )?TYPE\b"
        # varchar to text, and a longer varchar, change only the catalogue
        r"(?! (text|varchar\())"
    ),
    "rewrites every row for a default that is no constant": (
        rf"ALTER TABLE {NAME} ADD COLUMN (?!.*\bDEFAULT (NULL|'|-?\d|true|false|\())"
        r".*\bDEFAULT\b"
    ),
    "rewrites every row for an identity or a generated value": (
        rf"ALTER TABLE {NAME} ADD COLUMN .*(\bGENERATED\b|\bserial\b)"
    ),
    "keeps writers out while an index is built": (
        rf"CREATE (UNIQUE )?INDEX (?!CONCURRENTLY).* ON {NAME}"
    ),
    "looks through all rows for a constraint": (
        rf"ALTER TABLE {NAME} .*ADD CONSTRAINT .*"
        r"(CHECK|FOREIGN KEY|UNIQUE|EXCLUDE|PRIMARY KEY)(?!.*NOT VALID)"
        r"(?!.* USING INDEX )"
    ),
    "looks through all rows for NOT NULL": (
        rf"ALTER TABLE {NAME} .*ALTER COLUMN \S+ SET NOT NULL"
    ),
    "looks through all rows for a foreign key's values": (
        rf"ALTER TABLE {NAME} ADD COLUMN (?!.* NULL\b).*\bREFERENCES\b"
    ),
    "changes many rows within the transaction of a change of the schema": (
        rf"(UPDATE|DELETE FROM) {NAME}"
    ),
}
_CREATES = re.compile(rf"CREATE TABLE {NAME}", re.IGNORECASE)


def find_faults(statements: Iterable[str]) -> Iterator[str]:
    """Of one migration; a table that it creates itself is empty."""
    own: set[str] = set()
    for statement in statements:
        flat = " ".join(line for line in statement.split("\n") if line[:2] != "--")
        if created := _CREATES.match(flat.strip()):
            own.add(created["table"])
        for why, pattern in HOLDS.items():
            found = re.match(pattern, flat.strip(), re.IGNORECASE)
            if found and BIG.fullmatch(found["table"]) and found["table"] not in own:
                yield f"{found['table']}: {why}"


def statements_of(loader: MigrationLoader, key: Key) -> list[str]:
    """As `sqlmigrate` has it."""
    migration = loader.graph.nodes[key]
    state = loader.project_state((key[0], key[1]), at_end=False)
    with connection.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
        migration.apply(state, editor, collect_sql=True)
    return list(editor.collected_sql)


def runs_python_beside_schema(loader: MigrationLoader, key: Key) -> bool:
    """The schema's locks are kept for as long as it takes."""
    operations = loader.graph.nodes[key].operations
    num = sum(isinstance(one, RunPython) for one in operations)
    return 0 < num < len(operations)


def is_later(key: Key) -> bool:
    app, name = key
    return app in OURS and not name.startswith("0001_")


def test_no_migration_locks_a_large_table_for_long(db):
    loader = MigrationLoader(connection)
    found: dict[Key, set[str]] = {}
    for key in filter(is_later, loader.graph.nodes):
        faults = set(find_faults(statements_of(loader, key)))
        if runs_python_beside_schema(loader, key):
            faults.add("Python beside a change of the schema")
        if faults:
            found[key] = faults

    assert not found, (
        "Do it in steps: add the column without a default that has to be computed, "
        "fill it in a migration of its own (atomic = False, some rows at a time, so "
        "that it may be run again), build the index with AddIndexConcurrently, add the "
        "constraint NOT VALID and validate it in the migration behind."
    )


def test_statements_that_hold_a_large_table_are_found():
    index = 'CREATE INDEX "named" ON "samples_group" ("run_id");'
    hold = [
        index,
        'ALTER TABLE "runs_step" ALTER COLUMN "step" TYPE bigint USING "step"::bigint;',
        'ALTER TABLE "runs_step" ADD COLUMN "key" uuid DEFAULT gen_random_uuid();',
        'ALTER TABLE "runs_step" ADD COLUMN "n" int GENERATED ALWAYS AS IDENTITY;',
        'ALTER TABLE "runs_step" ADD CONSTRAINT "named" CHECK ("step" >= 0);',
        'ALTER TABLE "samples_group" ALTER COLUMN "reward_mean" SET NOT NULL;',
        '-- Fill\nUPDATE "runs_step" SET "epoch" = 1;',
    ]
    hold_none = [
        'ALTER TABLE "runs_step" ADD COLUMN "epoch" integer DEFAULT 0 NOT NULL;',
        'ALTER TABLE "runs_runevent" ALTER COLUMN "type" TYPE varchar(40);',
        'CREATE INDEX CONCURRENTLY "named" ON "samples_group" ("run_id");',
        'ALTER TABLE "runs_step" ADD CONSTRAINT "named" CHECK ("step" >= 0) NOT VALID;',
        'CREATE INDEX "named" ON "accounts_team" ("slug");',
    ]

    assert [one for one in hold if not list(find_faults([one]))] == []
    assert list(find_faults(hold_none)) == []
    assert list(find_faults(['CREATE TABLE "samples_group" ();', index])) == []
