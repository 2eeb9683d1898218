"""Every test runs against a real PostgreSQL and a real Redis.

A throw-away pair is started for each process, unless DATABASE_URL (and REDIS_URL) name
others; the PostgreSQL is a copy of one that was migrated before (tests/template.py).
This happens as pytest is configured, before Django reads its settings.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Literal

import django
import hypothesis
import pytest
import redis
from channels.layers import channel_layers
from django.conf import settings
from django.core.cache import cache
from django.db import connection

sys.path.insert(0, str(Path(__file__).parent.parent))

from dashboard.local.postgres import EmbeddedPostgres
from dashboard.local.redis_server import EmbeddedRedis
from tests.environment import hide_gpus
from tests.template import FAST, copy_template, make_template

hide_gpus()

# Marks of tests that are asked for by themselves; few files have any.
APART = {"slow", "faults", "load", "vllm"}
NOT_APART = "not slow and not load and not faults and not vllm"  # pyproject.toml's
# They import models, so they are loaded once Django is set up.
FIXTURES = ("tests.fixtures_people", "tests.fixtures_app", "tests.fixtures_metrics")

# How many examples a property is given: few and each time the same in `make test`. How
# long one takes says how busy the machine is, and nothing about the code.
for name, num_examples in (("ci", 20), ("slow", 100), ("soak", 2_000)):
    hypothesis.settings.register_profile(
        name,
        parent=hypothesis.settings.get_profile("default"),
        max_examples=num_examples,
        derandomize=name == "ci",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before tests are loaded, whose settings are made from the profile."""
    asked = set(session.config.option.markexpr.split(" or "))
    is_soak = session.config.getoption("--soak")
    hypothesis.settings.load_profile(
        "soak" if is_soak else "slow" if "slow" in asked else "ci"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        help="each fault ten times, outages at full length, and what takes hours",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_ours = "DATABASE_URL" not in os.environ
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        if is_ours:
            make_template()  # before the others copy it
        return  # it deals files out to processes, each of which starts its own
    if hasattr(config, "workerinput"):
        # Each has a core, and so have the trainers that it starts.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.configured:
        raise pytest.UsageError(
            "Django read its settings before the test servers were started. Unset "
            "DJANGO_SETTINGS_MODULE and run pytest again."
        )
    gc.disable()  # till all is loaded; see pytest_collection_finish
    # A shell has what it starts in the background ignore Ctrl-C, and so would processes
    # that tests start and end by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Short: a unix socket's path holds 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="cohort-test-", dir="/tmp"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["COHORT_DATA"] = str(folder / "data")
    os.environ.setdefault("COHORT_SECRET_KEY", "for-tests-only-" + "x" * 40)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    if is_ours:
        _start_postgres(config, folder)
    if "REDIS_URL" not in os.environ:
        _start_redis(config, folder)
    django.setup()
    if is_ours:
        made = {"TEMPLATE": "cohort", "MIGRATE": False}
        connection.settings_dict["TEST"].update(made)
    # Each test's clients load the middleware anew, and WhiteNoise would read all of a
    # thousand files each time. Web processes, which tests start too, do read them.
    settings.WHITENOISE_AUTOREFRESH = True
    # A password is slow to check, 0.2 s, so that it is slow to guess. Not so here; web
    # processes, which tests start too, do it as ever.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # It imports Django's tests, which read settings.
    importlib.import_module("tests.truncation").truncate_at_teardown()
    importlib.import_module("tests.time_limits").raise_time_limits()
    for module in FIXTURES:
        config.pluginmanager.import_plugin(module)


def _start_postgres(config: pytest.Config, folder: Path) -> None:
    copy_template(folder / "pg")
    server = EmbeddedPostgres(
        folder=folder / "pg",
        socket_folder=folder / "s",
        log=folder / "postgres.log",
        settings=FAST,
    )
    server.start()
    config.add_cleanup(server.stop)
    os.environ["DATABASE_URL"] = f"postgresql://cohort@/cohort?host={folder / 's'}"


def _start_redis(config: pytest.Config, folder: Path) -> None:
    server = EmbeddedRedis(socket=folder / "r" / "redis.sock", log=folder / "redis.log")
    server.start()
    config.add_cleanup(server.stop)
    os.environ["REDIS_URL"] = f"unix://{server.socket}"


def pytest_ignore_collect(
    collection_path: Path, config: pytest.Config
) -> Literal[True] | None:
    """Files without a test that is asked for are not loaded: that takes half a minute.

    So a mark stands in the file of its tests.
    """
    asked = set(config.option.markexpr.split(" or "))
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if asked <= APART:
        return None if any(f"mark.{name}" in text for name in asked) else True
    of_all = re.search(r"^pytestmark = .*(?:\n .*)*", text, re.MULTILINE)
    if config.option.markexpr != NOT_APART or of_all is None:
        return None
    return True if any(f"mark.{name}" in of_all[0] for name in APART) else None


def pytest_collection_finish() -> None:
    """Take what is loaded by now for what stays, but for what it says of sessions.

    A run collects garbage when it lets a model go, and would look through each of the
    million objects that imports and collected tests have left.
    """
    if settings.configured:
        _forget_limits_of_sessions()
    gc.enable()
    gc.collect()
    gc.freeze()


def _forget_limits_of_sessions() -> None:
    """Tests that import the web process would have its pool, and all tests after them.

    A pool hands on what one test has set of a session, and knows one database.
    """
    for name in ("pool", "options"):
        settings.DATABASES["default"]["OPTIONS"].pop(name, None)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Browser tests come last, faults before them, and files of minutes first of each.

    Playwright keeps an event loop running in the main thread for the rest of the
    session, and asyncio tests need to start their own. What begins last and takes
    minutes is what the other processes wait for.
    """
    minutes: dict[Path, int] = defaultdict(int)
    for item in items:
        for mark in (*item.iter_markers("slow"), *item.iter_markers("browser")):
            minutes[item.path] += mark.kwargs.get("minutes", 0)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        marks = item.keywords
        return "browser" in marks, "faults" in marks, -minutes[item.path]

    items.sort(key=place)
    if not config.getoption("--soak"):
        for_soaking = [item for item in items if "soak" in item.keywords]
        config.hook.pytest_deselected(items=for_soaking)
        items[:] = [item for item in items if "soak" not in item.keywords]


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    """No wrong password or request of the test before, nor what this process keeps.

    Where a test ends as a message of Redis comes in, its channel layer keeps a lock of
    the event loop that is gone, for which the next test would wait in vain.
    """
    cache.clear()
    channel_layers.backends.clear()
    throttle = sys.modules.get("dashboard.accounts.throttling")
    if throttle is not None and throttle.redis_client.cache_info().currsize:
        # Without a token a minute has 60 requests, and one test may send more.
        with contextlib.suppress(redis.RedisError):  # a test may have ended its server
            for key in throttle.redis_client().scan_iter("cohort:api:*"):
                throttle.redis_client().delete(key)
