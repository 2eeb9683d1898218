"""PostgreSQL: its address, limits of sessions, text that it can store, and queries
that are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import compress
from types import SimpleNamespace
from typing import Any, Generic, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet
from psycopg import Cursor, sql

# Of libpq, over TCP. The kernel's own limits are a quarter of an hour for what was not
# acknowledged, and two hours for an answer.
SILENCE = {
    "connect_timeout": 10,  # s
    "keepalives_idle": 15,  # s
    "keepalives_interval": 5,  # s
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}


def parse_database_url(url: str, password: str = "") -> dict[str, Any]:
    """postgresql://user:password@host:5432/name?sslmode=require in Django's format.

    `?host=/folder` names a unix socket, as in libpq's URLs. `password`: for a URL
    without one.
    """
    parts = urlsplit(url)
    name = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("postgres", "postgresql") or not name:
        raise ValueError(
            "DATABASE_URL must look like postgresql://user:password@host:5432/name; "
            f"got one that starts with {parts.scheme!r} and names database {name!r}."
        )
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or "") or password,
        "HOST": options.pop("host", parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,  # under ASGI a kept connection is leaked, not reused
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }


def limit_sessions(
    databases: dict[str, dict[str, Any]], *, statement_seconds: int, pooled: bool
) -> None:
    """Limit statements, lock waits and idle transactions of this process.

    A server that vanishes is given up after half a minute. Threads of one process share
    a pool; prefork workers and commands do not use one. Call it once, before the first
    connection.
    """
    options = databases["default"]["OPTIONS"]
    for name, value in SILENCE.items():
        options.setdefault(name, value)
    options["options"] = (
        f"-c statement_timeout={statement_seconds}s -c lock_timeout=3s "
        # Compiling a query takes longer than running it.
        "-c idle_in_transaction_session_timeout=60s -c jit=off"
    )
    if pooled:
        options.setdefault(
            "prepare_threshold", 5
        )  # what a PreparedCursor runs, at once
        options["pool"] = {
            "min_size": 2,
            "max_size": 10,
            "timeout": 10,
            "max_lifetime": 1_800,
        }


class PreparedCursor(Cursor[Any]):
    """Sends values apart from the statement, which a pool's connection prepares."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        return super().execute(query, params, **{"prepare": True, **options})


def prepared_cursor() -> CursorWrapper:
    """Open Django's cursor with a PreparedCursor inside."""
    cursor = connection.cursor()
    cursor.cursor = PreparedCursor(connection.connection)
    return cursor


Row = TypeVar("Row")
_FIRST = 2_147_000_000  # stands for a query's first value; no key comes so far


class FixedQuery(Generic[Row]):
    """A queryset whose SQL Django writes once, for queries of nearly every page.

    Writing it takes Django several times as long as PostgreSQL takes to answer.

    >>> of_user = FixedQuery(lambda user: Membership.objects.filter(user=user))
    >>> of_user(request.user.pk)  # a list of Memberships

    `build` is called once, with numbers in place of the values. It may only compare
    them with columns.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, Row]]) -> None:
        self._build = build
        self._written: tuple[Any, Any, str, list[int]] | None = None

    def __call__(self, *values: int) -> list[Row]:
        queryset, compiler, text, places = self._written or self._write(len(values))
        parameters = [values[place] for place in places]
        # The compiler knows what it selects; each thread has its own connection.
        compiler = copy(compiler)
        compiler.connection = _Preparing()
        compiler.as_sql = lambda: (text, parameters)
        query = copy(queryset.query)
        query.get_compiler = lambda using: compiler
        source = SimpleNamespace(
            db=queryset.db,
            query=query,
            _fields=queryset._fields,
            _known_related_objects={},
        )
        return list(queryset._iterable_class(source))

    def first(self, *values: int) -> Row | None:
        return next(iter(self(*values)), None)

    def _write(self, num_values: int) -> tuple[Any, Any, str, list[int]]:
        queryset = self._build(*range(_FIRST, _FIRST + num_values))
        compiler = queryset.query.get_compiler(queryset.db)
        text, parameters = compiler.as_sql()
        connection.ensure_connection()
        are_values = [
            isinstance(part, int) and 0 <= part - _FIRST < num_values
            for part in parameters
        ]
        places = [part - _FIRST for part in compress(parameters, are_values)]
        parts = [
            "%s"
            if is_value
            else sql.quote(part, connection.connection).replace("%", "%%")
            for part, is_value in zip(parameters, are_values, strict=True)
        ]
        text = text.replace("%%", "%%%%") % tuple(parts)
        self._written = queryset, compiler, text, places
        return self._written


class _Preparing:
    """The thread's connection, with prepared cursors."""

    cursor = staticmethod(prepared_cursor)

    def __getattr__(self, name: str) -> Any:
        return getattr(connection, name)


def fetch_all(
    query: str | sql.Composed,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    is_prepared: bool = False,
) -> list[Any]:
    """Run one query and return its rows, as tuples."""
    with prepared_cursor() if is_prepared else connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor)


@contextmanager
def session_lock(*key: int | str) -> Iterator[bool]:
    """Yield whether this session has the advisory lock; a lost connection unlocks it.

    `key`: one number, or two texts.
    """
    places = ", ".join("hashtext(%s)" if isinstance(p, str) else "%s" for p in key)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock({places})", key)
        (is_mine,) = cursor.fetchone()
        try:
            yield is_mine
        finally:
            if is_mine:
                cursor.execute(f"SELECT pg_advisory_unlock({places})", key)


def read_whole(text: str | None, *, digits: int = 18) -> int | None:
    """Read a whole number, such as an ID, of as many digits as a bigint surely holds;
    None for anything else.
    """
    # "²" is a digit too.
    if text and text.isascii() and text.isdigit() and len(text) <= digits:
        return int(text)
    return None


def clean_text(text: str) -> str:
    """NUL becomes ␀ and a lone surrogate �: text and jsonb refuse both."""
    if "\0" in text:
        text = text.replace("\0", "␀")
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_json(value: Any) -> Any:
    """Clean every text in a JSON value."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value


def release_connection() -> None:
    """Return the database connection before a long wait:

    a process has few, and Django opens another when needed.
    """
    if not connection.in_atomic_block:
        connection.close()
