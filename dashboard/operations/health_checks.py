"""Health checks of database, Redis, disk and files, each bounded to two seconds."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
from django.conf import settings
from django.contrib.staticfiles import finders
from django.db import connection
from redis.asyncio import Redis
from redis.exceptions import RedisError

from dashboard.accounts.templatetags.numbers import num_bytes as in_bytes
from dashboard.observability.logging import redact
from dashboard.project.first_migrations import known_migrations
from dashboard.web.overload import seconds_without_connection

T = TypeVar("T")
State = Literal["ok", "degraded", "failed"]
Names = Collection[tuple[str, str]]
CHECK_SECONDS = 2.0
SHARED_SECONDS = 1.0
READ_SECONDS = 1.0
SILENT = f"no response within {CHECK_SECONDS:g} s"
LATE_SECONDS = 30  # the reaper runs every 5 s
MOST_WAITING = 100
MOST_NAMES = 5
QUEUES = ("default", "training")
# One file of each source of static files.
LOADED = (
    "css/app.css",
    "js/shell.js",
    "ninja/swagger-ui-bundle.js",
    "vendor/tabler/css/tabler.used.css",
    "vendor/plotly/plotly-cartesian.min.js",
    "vendor/htmx/htmx.min.js",
    "vendor/diff/diff.min.js",
)
# A hanging disk blocks the one thread that checks it; later checks wait for it.
_of_program = ThreadPoolExecutor(1, thread_name_prefix="health of the program")
_of_database = ThreadPoolExecutor(1, thread_name_prefix="health of the database")
_of_data = ThreadPoolExecutor(1, thread_name_prefix="health of the data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Without a required one pages are not served whole; without others, less well."""

    name: str
    state: State
    value: str
    runbook: str  # a heading of RUNBOOK.md, as its address ends
    is_required: bool = False
    age_seconds: float | None = None
    remedy: str = ""  # if it is not ok
    num_messages: Mapping[str, int] = field(default_factory=dict)  # of Redis, by queue

    def as_json(self) -> dict[str, Any]:
        age = self.age_seconds
        return {
            "name": self.name,
            "state": self.state,
            "required": self.is_required,
            "value": self.value,
            "age_seconds": None if age is None else round(age, 1),
            "remedy": self.remedy,
        }


_migrations = partial(
    Part, name="migrations", is_required=True, runbook="an-upgrade-went-wrong"
)
_known_migrations = cache(known_migrations)
_static = partial(Part, name="static files", is_required=True)
_folder = partial(Part, name="data folder", runbook="the-disk-is-full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    parts: Sequence[Part]

    @property
    def is_ready(self) -> bool:
        return not any(p.is_required and p.state == "failed" for p in self.parts)

    @property
    def status(self) -> str:
        if not self.is_ready:
            return "not ready"
        return "ready" if all(p.state == "ok" for p in self.parts) else "degraded"

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


_lock = asyncio.Lock()
_last: tuple[float, Report] | None = None


async def read_report() -> Report:
    """Run one check at a time and one per second, since the endpoint is public."""
    global _last
    async with _lock:
        if _last is None or time.monotonic() >= _last[0]:
            report = await _check()
            _last = (time.monotonic() + SHARED_SECONDS, report)
        return _last[1]


async def _check() -> Report:
    groups = await asyncio.gather(
        _bounded(check_database, database_failed),
        check_connections(),
        _bounded(check_static, static_failed),
        _bounded(check_redis, redis_failed),
        _bounded(check_folder, folder_failed),
    )
    return Report(parts=[part for parts in groups for part in parts])


async def _bounded(
    check: Callable[[], Awaitable[list[Part]]], failed: Callable[[str], list[Part]]
) -> list[Part]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return failed(SILENT)


async def in_thread(threads: ThreadPoolExecutor, check: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, check)


# PostgreSQL: its answer, migrations, periodic tasks, connections of this process.


async def check_database() -> list[Part]:
    """Connect separately: the pool's may all wait for a hanging server."""
    began = time.perf_counter()
    try:
        async with await psycopg.AsyncConnection.connect(
            **connection_values(), autocommit=True
        ) as server:
            seconds = time.perf_counter() - began
            applied = await _rows(server, "SELECT app, name FROM django_migrations")
            reaped = await _rows(
                server,
                "SELECT extract(epoch FROM now() - looked_at)::float8"
                " FROM training_reaperwatch",
            )
    except psycopg.Error as error:
        why = redact(str(error).strip().split("\n")[0])
        if not await in_thread(_of_database, _is_pool_served):
            return database_failed(why)
        # A full server takes no new connection, but pages have theirs.
        remedy = "Raise max_connections of PostgreSQL, or start fewer processes."
        return [
            Part(
                name="database",
                state="degraded",
                value=why,
                remedy=remedy,
                is_required=True,
                runbook="postgres-gone",
            )
        ]
    database = Part(
        name="database",
        state="ok",
        value=f"responded in {1_000 * seconds:,.0f} ms",
        is_required=True,
        runbook="postgres-gone",
    )
    migrations = await _check_migrations([(row[0], row[1]) for row in applied])
    tasks = judge_tasks(reaped[0][0] if reaped else None)
    return [database, migrations, tasks]


def _is_pool_served() -> bool:
    pool = getattr(connection, "pool", None)
    if pool is None:
        return False
    try:
        with pool.connection(timeout=1) as server:
            server.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


async def check_connections() -> list[Part]:
    """Check those that the requests of this process share; none if each has its own."""
    pool = getattr(connection, "pool", None)
    if pool is None:
        return []
    stats = pool.get_stats()
    waiting, most = stats.get("requests_waiting", 0), stats["pool_max"]
    used = stats["pool_size"] - stats["pool_available"]
    value = f"{used:,} of {most:,} in use, {waiting:,} requests waiting"
    state: State = "degraded" if waiting else "ok"
    if (seconds := seconds_without_connection()) is not None:
        value += f"; {seconds:,.0f} s ago a request timed out"
        state = "failed"
    remedy = "Check the log for requests that take over 1 s."
    return [
        Part(
            name="database connections",
            state=state,
            value=value,
            is_required=True,
            remedy="" if state == "ok" else remedy,
            runbook="pages-are-slow",
        )
    ]


async def _rows(
    server: psycopg.AsyncConnection[Any], query: str
) -> list[tuple[Any, ...]]:
    try:
        return await (await server.execute(query)).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


def database_failed(why: str) -> list[Part]:
    failed = partial(
        Part,
        state="failed",
        remedy="Start PostgreSQL, or fix DATABASE_URL. Runs continue and lose no data.",
        runbook="postgres-gone",
    )
    unknown = "not checked, because the database does not respond"
    return [
        failed(name="database", value=why, is_required=True),
        failed(name="migrations", value=unknown, is_required=True),
        failed(name="periodic tasks", value=unknown),
    ]


def judge_tasks(age: float | None) -> Part:
    """Judge by the reaper, which runs only if beat and a default worker are alive."""
    is_late = age is None or age > LATE_SECONDS
    done = "never ran" if age is None else f"ran {age:,.0f} s ago"
    return Part(
        name="periodic tasks",
        state="degraded" if is_late else "ok",
        value=f"{done}; late after {LATE_SECONDS} s",
        age_seconds=age,
        remedy="Start beat and a default worker, or another worker if all slots are "
        "busy: celery -A dashboard.celery:app beat, and worker --queues default"
        if is_late
        else "",
        runbook="periodic-tasks-are-late",
    )


async def _check_migrations(applied: Names) -> Part:
    """Check the migrations; a process that has just begun reads the files first: a
    second or two.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            names = await in_thread(_of_program, _known_migrations)
    except TimeoutError:
        return _migrations(
            state="degraded",
            value="not compared yet: this process is still reading its files",
            remedy="Try again in a few seconds.",
        )
    return compare(names, set(applied).difference(*names.values()))


def compare(known: Names, applied: Names) -> Part:
    lacking = sorted(set(known) - set(applied))
    ours = {app for app, _ in known}
    unknown = sorted(name for name in set(applied) - set(known) if name[0] in ours)
    if lacking:
        return _migrations(
            state="failed",
            value=f"{len(lacking):,} not applied: {_list(lacking)}",
            remedy="Run: python manage.py migrate",
        )
    if unknown:
        return _migrations(
            state="degraded",
            value=f"{len(unknown):,} unknown to this version: {_list(unknown)}",
            remedy="The database is newer than this process. Start the new version.",
        )
    return _migrations(state="ok", value=f"all {len(set(known)):,} applied")


def _list(names: list[tuple[str, str]]) -> str:
    listed = ", ".join(f"{app} {name}" for app, name in names[:MOST_NAMES])
    rest = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return listed + rest


def connection_values() -> dict[str, Any]:
    """Return the values with which Django connects, but for the pool, within two
    seconds.
    """
    at = connection.settings_dict
    options = settings.DATABASES["default"]["OPTIONS"]
    values = {
        "dbname": at["NAME"],
        "user": at["USER"],
        "password": at["PASSWORD"],
        "host": at["HOST"],
        "port": at["PORT"],
        **{name: value for name, value in options.items() if name != "pool"},
        "connect_timeout": 2,
        "application_name": "cohort readyz",
    }
    return {name: value for name, value in values.items() if value}


# Redis, the files of this installation, and the data folder.


async def check_redis() -> list[Part]:
    began = time.perf_counter()
    try:
        async with Redis.from_url(settings.REDIS_URL) as client:
            pipe = client.pipeline(transaction=False)
            for queue in QUEUES:
                pipe.llen(queue)
            waiting = dict(zip(QUEUES, await pipe.execute(), strict=True))
    except (RedisError, OSError) as error:
        return redis_failed(redact(str(error)))
    seconds = time.perf_counter() - began
    counts = ", ".join(f"{number:,} for {queue}" for queue, number in waiting.items())
    is_long = max(waiting.values()) > MOST_WAITING
    return [
        Part(
            name="redis",
            state="degraded" if is_long else "ok",
            value=f"responded in {1_000 * seconds:,.0f} ms; waiting messages: {counts} "
            "workers",
            remedy="Start another worker for the queue." if is_long else "",
            runbook="periodic-tasks-are-late" if is_long else "redis-gone",
            num_messages=waiting,
        )
    ]


def redis_failed(why: str) -> list[Part]:
    return [
        Part(
            name="redis",
            state="failed",
            value=why,
            remedy="Start Redis, or fix REDIS_URL. Until then, pages poll every 2 s.",
            runbook="redis-gone",
        )
    ]


async def check_static() -> list[Part]:
    return [await in_thread(_of_program, find_static_files)]


def find_static_files() -> Part:
    lost = [name for name in LOADED if finders.find(name) is None]
    return _static(
        state="failed" if lost else "ok",
        value=f"not found: {', '.join(lost)}" if lost else f"all {len(LOADED)} found",
        remedy="Run: make setup (in a container: rebuild the image)" if lost else "",
        runbook="an-upgrade-went-wrong",
    )


def static_failed(why: str) -> list[Part]:
    remedy = "Check the disk that Cohort is installed on."
    return [
        _static(state="failed", value=why, remedy=remedy, runbook="the-disk-is-full")
    ]


async def check_folder() -> list[Part]:
    return [await in_thread(_of_data, check_data_folder)]


def check_data_folder() -> Part:
    folder = Path(settings.COHORT_DATA)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
        use = shutil.disk_usage(folder)
    except OSError as error:
        return _folder(
            state="failed",
            value=f"Cohort cannot write to {folder}: {os.strerror(error.errno or 0)}",
            remedy="Free some space, or give Cohort's user write access.",
        )
    is_low = use.free < settings.LEAST_FREE_BYTES
    remedy = "Delete runs, checkpoints or datasets, or enlarge the disk."
    return _folder(
        state="degraded" if is_low else "ok",
        value=f"{in_bytes(use.free)} free of {in_bytes(use.total)}; low below "
        f"{in_bytes(settings.LEAST_FREE_BYTES)}",
        remedy=remedy if is_low else "",
    )


def folder_failed(why: str) -> list[Part]:
    remedy = "Check the disk or the file server with COHORT_DATA."
    return [_folder(state="failed", value=why, remedy=remedy)]
