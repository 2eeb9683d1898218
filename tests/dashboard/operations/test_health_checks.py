import asyncio
import errno
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from psycopg_pool import ConnectionPool

from dashboard.operations import health_checks
from dashboard.operations.health_checks import (
    Part,
    Report,
    compare,
    connection_values,
    in_thread,
    judge_tasks,
)
from dashboard.supervision.models import ReaperWatch

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_is_known")]
TOKEN = "a-token-of-a-test-0123456789"


def ask(host: str = "localhost", **headers: str) -> tuple[int, dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = Client().get("/readyz", headers={"host": host, **named})
    return response.status_code, response.json()


def parts_of(reported: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in reported["parts"]}


@pytest.mark.django_db(transaction=True)
def test_all_is_well_where_the_reaper_has_looked():
    ReaperWatch.objects.create(id=1, since=Now(), looked_at=Now())

    status, reported = ask()

    assert (status, reported["status"]) == (200, "ready"), reported
    assert list(parts_of(reported)) == [
        "database",
        "migrations",
        "periodic tasks",
        "static files",
        "redis",
        "data folder",
    ]
    assert {part["state"] for part in reported["parts"]} == {"ok"}
    assert {part["remedy"] for part in reported["parts"]} == {""}


@pytest.mark.django_db(transaction=True)
def test_without_beat_pages_are_served_with_a_remedy():
    ReaperWatch.objects.create(
        id=1, since=Now(), looked_at=Now() - timedelta(seconds=40)
    )

    status, reported = ask()

    part = parts_of(reported)["periodic tasks"]
    assert (status, reported["status"]) == (200, "degraded")
    assert part["state"] == "degraded"
    assert part["value"].endswith("late after 30 s")
    assert "celery" in part["remedy"]
    assert 40 <= part["age_seconds"] < 70
    assert not part["required"]


def test_many_waiting_messages_are_reported(monkeypatch):
    monkeypatch.setattr(health_checks, "MOST_WAITING", -1)

    _, reported = ask()

    assert parts_of(reported)["redis"]["state"] == "degraded"
    # Tests before this one may have put messages down.
    assert re.search(r"\d+ for training", parts_of(reported)["redis"]["value"])


def test_pages_are_served_without_redis(settings):
    settings.REDIS_URL = "unix:///nowhere/redis.sock"

    status, reported = ask()

    parts = parts_of(reported)
    assert (status, reported["status"]) == (200, "degraded")
    assert parts["redis"]["state"] == "failed"
    assert "Start Redis" in parts["redis"]["remedy"]


def test_pages_are_not_served_before_migrations_are_applied():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT app, name FROM django_migrations WHERE app = 'upkeep' ORDER BY name"
        )
        applied = cursor.fetchall()

    part = compare([*applied, ("upkeep", "0099_new"), ("runs", "0099_x")], applied)

    assert part.state == "failed"
    assert part.value.startswith("2 ")
    assert part.value.endswith(": runs 0099_x, upkeep 0099_new")
    assert "manage.py migrate" in part.remedy
    assert not Report(parts=[part]).is_ready


def test_a_newer_database_is_reported():
    part = compare([("runs", "0001")], [("runs", "0001"), ("runs", "0002"), ("x", "1")])

    assert part.state == "degraded"
    assert part.value.startswith("1 ")
    assert part.value.endswith(": runs 0002")


def test_only_the_first_names_are_listed():
    part = compare([("runs", f"{n:04}") for n in range(9)], [])

    assert part.value.startswith("9 not applied: runs 0000, ")
    assert part.value.endswith("runs 0004 and 4 more")


def test_it_is_not_ready_where_files_of_pages_are_lost(monkeypatch):
    monkeypatch.setattr(health_checks, "LOADED", ("css/app.css", "vendor/lost.js"))

    status, reported = ask()

    assert (status, reported["status"]) == (503, "not ready")
    assert parts_of(reported)["static files"]["value"] == "not found: vendor/lost.js"


def test_low_disk_space_is_reported(settings):
    settings.LEAST_FREE_BYTES = 2**60

    status, reported = ask()

    part = parts_of(reported)["data folder"]
    assert status == 200
    assert part["state"] == "degraded"
    assert "free of" in part["value"]
    assert part["remedy"]


def test_a_read_only_folder_is_reported(settings, tmp_path):
    settings.COHORT_DATA = tmp_path / "gone"

    _, reported = ask()

    part = parts_of(reported)["data folder"]
    assert part["state"] == "failed"
    assert os.strerror(errno.ENOENT) in part["value"]


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Takes connections and never says a word, as a server that hangs."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield server.getsockname()[1]


def test_it_answers_though_both_servers_hang(silent_server, settings, monkeypatch):
    def hanging() -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": silent_server, "dbname": "x"}

    monkeypatch.setattr(health_checks, "connection_values", hanging)
    monkeypatch.setattr(health_checks, "CHECK_SECONDS", 0.2)
    settings.REDIS_URL = f"redis://127.0.0.1:{silent_server}/0"

    status, reported = ask()

    parts = parts_of(reported)
    assert (status, reported["status"]) == (503, "not ready")
    assert parts["database"]["value"] == health_checks.SILENT
    assert parts["migrations"]["state"] == "failed"
    assert parts["redis"]["state"] == "failed"
    assert parts["static files"]["state"] == "ok"


def test_strangers_get_one_word():
    for headers in (
        {"host": "testserver"},
        {"x_forwarded_for": "192.0.2.7"},
        {"forwarded": "for=192.0.2.7"},
    ):
        _, reported = ask(**headers)

        assert list(reported) == ["status"], headers


def test_with_a_token_everyone_must_send_it(settings):
    settings.METRICS_TOKEN = TOKEN
    settings.ALLOWED_HOSTS = ["localhost", "cohort.example.org"]

    assert list(ask()[1]) == ["status"]
    assert list(ask(authorization="Bearer wrong")[1]) == ["status"]
    assert list(ask(authorization=f"Basic {TOKEN}")[1]) == ["status"]
    _, reported = ask("cohort.example.org", authorization=f"Bearer {TOKEN}")
    assert "parts" in reported


def test_no_credentials_are_reported(settings, monkeypatch):
    def refused() -> dict[str, Any]:
        return {"conninfo": "postgresql://cohort:hidden@127.0.0.1:1/x"}

    monkeypatch.setattr(health_checks, "connection_values", refused)
    settings.REDIS_URL = "redis://:hidden@127.0.0.1:1/0"

    status, reported = ask()

    assert status == 503
    assert "hidden" not in str(reported)


async def test_concurrent_requests_cost_one_check(monkeypatch):
    looks = 0

    async def look() -> Report:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        return Report(parts=[])

    monkeypatch.setattr(health_checks, "_check", look)

    await asyncio.gather(*(health_checks.read_report() for _ in range(20)))
    await health_checks.read_report()

    assert looks == 1


async def test_a_disk_that_hangs_takes_one_thread():
    may_end, looks = threading.Event(), 0
    threads = ThreadPoolExecutor(1)

    def hang() -> None:
        nonlocal looks
        looks += 1
        may_end.wait()

    try:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await in_thread(threads, hang)
    finally:
        may_end.set()
    threads.shutdown()
    assert looks == 1


@pytest.mark.parametrize("has_pool", [True, False])
def test_a_server_without_a_free_connection_serves_pages_that_have_theirs(
    has_pool, monkeypatch
):
    values = connection_values()

    async def refuse(**_: Any) -> None:
        raise psycopg.OperationalError("FATAL: sorry, too many clients already")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)
    with ConnectionPool(kwargs=values, min_size=1, max_size=1) as pool:
        shared = pool if has_pool else None
        monkeypatch.setattr(type(connections["default"]), "pool", shared)
        [database, *others] = asyncio.run(health_checks.check_database())

    assert (database.name, database.state) == (
        "database",
        "degraded" if has_pool else "failed",
    )
    assert [part.state for part in others] == ([] if has_pool else ["failed"] * 2)


def test_a_degraded_part_keeps_serving():
    part = Part(name="a", state="failed", value="", runbook="")

    assert Report(parts=[part]).is_ready
    assert Report(parts=[part]).status == "degraded"


def test_tasks_that_never_ran_are_late():
    assert judge_tasks(None).state == "degraded"
