"""Which statements of a migration trouble a process that is one release older.

While an upgrade lasts such processes go on beside the newer tables, and so do all of
them where somebody goes back a release. It judges SQL, so it sees what Django makes of
an operation: of a default it is given, Django takes back the database's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

NAME = r'"?(?P<table>\w+)"?'
REQUIRED = "older processes write rows without it"
TROUBLES = {
    "older processes still ask for it": (
        rf"ALTER TABLE {NAME} (DROP COLUMN|RENAME)|DROP TABLE (?:IF EXISTS )?"
        r'"?(?P<dropped>\w+)"?'
    ),
    "older processes may write what it refuses": (
        rf"ALTER TABLE {NAME} .*(SET NOT NULL|ADD CONSTRAINT)"
        r"|CREATE UNIQUE INDEX (CONCURRENTLY )?\S+ ON \"?(?P<indexed>\w+)\"?"
    ),
}
_CREATES = re.compile(rf"CREATE TABLE {NAME}", re.IGNORECASE)
_ADDS = re.compile(
    rf'ALTER TABLE {NAME} ADD COLUMN "?(?P<column>\w+)"? (?P<rest>.*)', re.IGNORECASE
)
_TAKES_BACK = re.compile(
    rf'ALTER TABLE {NAME} ALTER COLUMN "?(?P<column>\w+)"? DROP DEFAULT', re.IGNORECASE
)


def find_troubles(statements: Iterable[str]) -> Iterator[str]:
    """Of one migration; of a table that it creates no older process knows."""
    flat = [_flatten(statement) for statement in statements]
    own = {found["table"] for one in flat if (found := _CREATES.match(one))}
    bare = {_place(found) for one in flat if (found := _TAKES_BACK.match(one))}
    for one in flat:
        for why, pattern in TROUBLES.items():
            if found := re.match(pattern, one, re.IGNORECASE):
                [table] = filter(None, found.groupdict().values())
                if table not in own:
                    yield f"{table}: {why}"
        if (added := _ADDS.match(one)) and added["table"] not in own:
            rest = added["rest"].upper()
            is_filled = "DEFAULT" in rest or "GENERATED" in rest
            if "NOT NULL" in rest and (not is_filled or _place(added) in bare):
                yield f"{added['table']}: {REQUIRED}"


def _flatten(statement: str) -> str:
    lines = [line for line in statement.split("\n") if line[:2] != "--"]
    return " ".join(" ".join(lines).split())


def _place(found: re.Match[str]) -> tuple[str, str]:
    return found["table"], found["column"]
