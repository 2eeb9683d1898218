"""The content of a backup: the database's rows as text files, and files of the data
folder.

Rows by COPY, which only needs the connection: pg_dump is not in the web image, and
rejects newer servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from psycopg import sql

from dashboard.local.data_folder import private_folder
from dashboard.local.preflight import hold_folder
from dashboard.local.redis_server import embedded_postgres

# What migrations make, and sessions: after a restore people sign in again.
SKIPPED_TABLES = frozenset({"django_migrations", "django_session"})
MADE_BY_MIGRATIONS = frozenset(
    {"django_migrations", "django_content_type", "auth_permission"}
)
# Servers, their logs and derived files, by name prefix.
SKIPPED_FOLDERS = ("postgres", "postgres.new", "sockets", "logs", "cache", "tokens")
SKIPPED_FILES = ("up.lock", "beat-schedule", "bench", "last-backup", ".")
KEY_FILE = "secret-key"
CHECKPOINTS = ("checkpoints", "kept")  # in runs/<id>
CHUNK_BYTES = 2**20
TABLES = """
    SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
      AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY c.relname ORDER BY c.relname
"""
# Not those of extensions.
FUNCTIONS = """
    SELECT p.oid::regprocedure::text FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace AND p.prokind = 'f'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""
SEQUENCES = """
    SELECT sequencename, last_value FROM pg_sequences
    WHERE schemaname = current_schema() AND last_value IS NOT NULL
    ORDER BY sequencename
"""


@contextmanager
def one_snapshot() -> Iterator[None]:
    """All that is read in here is from one moment."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def read_columns() -> dict[str, list[str]]:
    """Of each table, the columns that are stored, by the tables' names."""
    return dict(_rows(TABLES))


def read_sequences() -> dict[str, int]:
    """The last value of each sequence."""
    return dict(_rows(SEQUENCES))


def read_server_version() -> int:
    """PostgreSQL's own: 18."""
    return int(_rows("SHOW server_version_num")[0][0]) // 10_000


def write_rows(table: str, columns: list[str], file: IO[bytes]) -> int:
    """Write the table to the file; how many rows it has."""
    statement = sql.SQL("COPY {} ({}) TO STDOUT").format(*_named(table, columns))
    num_rows = 0
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            file.write(block)
            num_rows += bytes(block).count(b"\n")  # one within a text is written \\n
    return num_rows


def load_rows(table: str, columns: list[str], file: IO[bytes]) -> None:
    """Put the file's rows into the table."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(*_named(table, columns))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        while block := file.read(CHUNK_BYTES):
            copy.write(block)


def restore_sequences(sequences: dict[str, int]) -> None:
    with connection.cursor() as cursor:
        for name, last in sequences.items():
            named = sql.Identifier(name).as_string(cursor.connection)
            cursor.execute("SELECT setval(%s::regclass, %s)", [named, last])


def tables_with_rows() -> list[str]:
    """Tables that contain more than migrations create."""
    names = [name for name in read_columns() if name not in MADE_BY_MIGRATIONS]
    some = sql.SQL("SELECT EXISTS (SELECT FROM {})")
    return [name for name in names if _rows(some.format(sql.Identifier(name)))[0][0]]


def delete_rows(tables: frozenset[str]) -> None:
    """Remove what migrations made, before the same comes from a backup."""
    with connection.cursor() as cursor:
        for name in sorted(tables):
            cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))


def drop_all_tables() -> None:
    """And the functions that migrations made for them."""
    names = [sql.Identifier(name) for name in read_columns()]
    if names:
        with connection.cursor() as cursor:
            drop = sql.SQL("DROP TABLE {} CASCADE")
            cursor.execute(drop.format(sql.SQL(", ").join(names)))
    for (signature,) in _rows(FUNCTIONS):
        with connection.cursor() as cursor:
            cursor.execute(f"DROP FUNCTION {signature}")


def _named(table: str, columns: list[str]) -> tuple[sql.Composable, sql.Composable]:
    return (
        sql.Identifier(table),
        sql.SQL(", ").join(sql.Identifier(column) for column in columns),
    )


def _rows(query: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


# Files of the data folder.


def list_files(data: Path, *, with_checkpoints: bool) -> Iterator[tuple[str, Path]]:
    """Each file with its name in the backup: "runs/3/run.json"."""
    entries = sorted(data.iterdir()) if data.is_dir() else []
    for entry in entries:
        if entry.name in SKIPPED_FOLDERS or entry.name.startswith(SKIPPED_FILES):
            continue
        for path in _files_of(entry):
            name = path.relative_to(data)
            if with_checkpoints or not _is_checkpoint(name):
                yield name.as_posix(), path


def _files_of(entry: Path) -> Iterator[Path]:
    """A folder of the data folder may be a link to another disk; no file within is."""
    if entry.is_file():
        yield entry
        return
    for path in sorted(entry.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _is_checkpoint(name: Path) -> bool:
    parts = name.parts
    return len(parts) > 3 and parts[0] == "runs" and parts[2] in CHECKPOINTS


# The database for one command: the one that runs, or Cohort's own, started for it.


@contextmanager
def database(*, held: bool) -> Iterator[None]:
    """`held`: lock the data folder. LocalFault if another process uses it."""
    data: Path = settings.COHORT_DATA
    if not settings.DATABASE_IS_EMBEDDED or (not held and _answers()):
        yield
        return
    private_folder(data)
    with ExitStack() as stack:
        stack.enter_context(hold_folder(data, address="backup or restore"))
        postgres = embedded_postgres(data)
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(connection.close)
        yield


def _answers() -> bool:
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True
