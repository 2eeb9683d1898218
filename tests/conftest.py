"""Every test runs against a real PostgreSQL and a real Redis.

Each process starts its own temporary pair, unless DATABASE_URL and REDIS_URL are set.
PostgreSQL is a copy of a migrated template (tests/template.py). This happens when
pytest is configured, before Django reads its settings.
"""

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
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

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

pytest_plugins = ["tests.costs"]
# Marks of tests that run only when selected; few files have any.
OPT_IN = {"slow", "faults", "load", "vllm"}
DEFAULT_MARKS = "not slow and not load and not faults and not vllm"  # pyproject.toml's
# They import models, so they are loaded after django.setup().
FIXTURES = (
    "tests.worlds",
    "tests.fixtures_people",
    "tests.fixtures_app",
    "tests.fixtures_metrics",
    "tests.fixtures_runs",
)

# Hypothesis examples: few and the same each time in `make test`. No deadline, since the
# duration depends on the load of the machine.
for name, num_examples in (("ci", 8), ("slow", 100), ("soak", 2_000)):
    hypothesis.settings.register_profile(
        name,
        parent=hypothesis.settings.get_profile("default"),
        max_examples=num_examples,
        derandomize=name == "ci",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before tests are loaded, since their settings copy the profile."""
    selected = set(session.config.option.markexpr.split(" or "))
    is_soak = session.config.getoption("--soak")
    hypothesis.settings.load_profile(
        "soak" if is_soak else "slow" if "slow" in selected else "ci"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        help="repeat each fault ten times, with full outages and hour-long tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_ours = "DATABASE_URL" not in os.environ
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        if is_ours:
            make_template()  # before the workers copy it
        return  # the controller only distributes files; each worker starts its servers
    if hasattr(config, "workerinput"):
        # One core for each worker, and for the trainers that it starts.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.configured:
        raise pytest.UsageError(
            "Django read its settings before the test servers were started. Unset "
            "DJANGO_SETTINGS_MODULE and run pytest again."
        )
    gc.disable()  # until collection is done; see pytest_collection_finish
    # A shell's background processes ignore SIGINT, and so would processes that tests
    # start and end with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Short: the path of a unix socket has at most 107 characters.
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
        template = {"TEMPLATE": "cohort", "MIGRATE": False}
        connection.settings_dict["TEST"].update(template)
    # Each test client loads the middleware again, and WhiteNoise would scan a thousand
    # files each time. Web processes started by tests do scan them.
    settings.WHITENOISE_AUTOREFRESH = True
    # Checking a password takes 0.2 s by design. Tests use a fast hash; web processes
    # started by tests do not.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # They import Django's tests, which read settings.
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
    """Files without a selected test are not loaded, which would take half a minute.

    So a mark must be in the same file as its tests.
    """
    selected = set(config.option.markexpr.split(" or "))
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if selected <= OPT_IN:
        return None if any(f"mark.{name}" in text for name in selected) else True
    file_marks = re.search(r"^pytestmark = .*(?:\n .*)*", text, re.MULTILINE)
    if config.option.markexpr != DEFAULT_MARKS or file_marks is None:
        return None
    return True if any(f"mark.{name}" in file_marks[0] for name in OPT_IN) else None


def pytest_collection_finish() -> None:
    """Freeze the objects loaded so far, and drop database pools.

    A run collects garbage when it releases a model, which would scan the million
    objects of imports and collected tests each time.
    """
    if settings.configured:
        _drop_database_pools()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what a file leaves: caches and modules, hundreds of thousands of objects.

    A run that a later test trains would scan them each time it collects garbage. The
    oldest generation is small between two files, so its garbage may stay.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect(1)
        gc.freeze()


def _drop_database_pools() -> None:
    """Importing the web process sets a pool, also for later tests.

    A pool passes session settings from test to test, and knows one database only.
    """
    for name in ("pool", "options"):
        settings.DATABASES["default"]["OPTIONS"].pop(name, None)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Order: others, faults, browser tests; the longest files first within each.

    Playwright keeps an event loop running in the main thread until the end of the
    session, and asyncio tests need their own. A long file that starts last would keep
    the other processes waiting.
    """
    minutes: dict[Path, int] = defaultdict(int)
    for item in items:
        for mark in (*item.iter_markers("slow"), *item.iter_markers("browser")):
            minutes[item.path] += mark.kwargs.get("minutes", 0)

    def sort_key(item: pytest.Item) -> tuple[bool, bool, int]:
        marks = item.keywords
        return "browser" in marks, "faults" in marks, -minutes[item.path]

    items.sort(key=sort_key)
    if not config.getoption("--soak"):
        soak_only = [item for item in items if "soak" in item.keywords]
        config.hook.pytest_deselected(items=soak_only)
        items[:] = [item for item in items if "soak" not in item.keywords]


@lru_cache(maxsize=1)
def _caches_of_rows(_num_modules: int) -> list[Any]:
    """The tests of a file share rows, and each makes other history of them."""
    keyed = (
        module
        for name, module in list(sys.modules.items())
        if name.startswith("dashboard.") and hasattr(module, "Keyed")
    )
    values = (value for module in keyed for value in vars(module).values())
    return [value for value in values if hasattr(value, "cache_clear")]


@pytest.fixture(autouse=True)
def _clear_caches() -> None:
    """Reset throttles, caches and channel layers before each test.

    If a test ends while a Redis message arrives, its channel layer keeps a lock of the
    closed event loop, and the next test would wait for it forever.
    """
    cache.clear()
    channel_layers.backends.clear()
    for cached in _caches_of_rows(len(sys.modules)):
        cached.cache_clear()
    throttle = sys.modules.get("dashboard.accounts.throttling")
    if throttle is not None and throttle.redis_client.cache_info().currsize:
        # Without a token, 60 requests a minute are allowed; one test may send more.
        # A wrong password counts for its user in the next test, too.
        with contextlib.suppress(
            redis.RedisError
        ):  # a test may have stopped its server
            for key in throttle.redis_client().scan_iter("cohort:*"):
                throttle.redis_client().delete(key)
