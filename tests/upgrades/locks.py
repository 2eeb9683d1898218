"""Which statements of a migration hold a large table for as long as it is large.

Reading and writing wait meanwhile, or a lock is kept until a whole table was looked
through. It judges SQL, so it sees what Django makes of an operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from django.db import connection
from django.db.migrations import RunPython
from django.db.migrations.loader import MigrationLoader

# What grows with each step, event and completion; every other table stays small.
BIG = re.compile(
    r"runs_(step|runevent|rollup|evaluation)|samples_\w+|training_systemsample"
    r"|datasets_datasetrow|accounts_auditentry"
)
NAME = r'"?(?P<table>\w+)"?'
HOLDS = {
    "rewrites every row": (
        rf"ALTER TABLE (ONLY )?{NAME}.*\bALTER COLUMN \S+ (SET DATA )?TYPE\b"
        # varchar to text, and a longer varchar, change the catalogue alone
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


def statements_of(loader: MigrationLoader, key: tuple[str, str]) -> list[str]:
    """As `sqlmigrate` has it."""
    migration = loader.graph.nodes[key]
    state = loader.project_state((key[0], key[1]), at_end=False)
    with connection.schema_editor(collect_sql=True, atomic=migration.atomic) as editor:
        migration.apply(state, editor, collect_sql=True)
    return list(editor.collected_sql)


def runs_python_beside_schema(loader: MigrationLoader, key: tuple[str, str]) -> bool:
    """The schema's locks are kept for as long as it takes."""
    operations = loader.graph.nodes[key].operations
    num = sum(isinstance(one, RunPython) for one in operations)
    return 0 < num < len(operations)
