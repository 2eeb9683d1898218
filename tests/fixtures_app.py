"""A web process on loopback, and a browser."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection
from django.test import Client
from django.utils.crypto import get_random_string
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Playwright,
    sync_playwright,
)

from dashboard.accounts.models import User
from dashboard.local.supervisor import web

ROOT = Path(__file__).parent.parent
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_database_url() -> str:
    at = connection.settings_dict
    host = at["HOST"]
    if host.startswith("/"):
        return f"postgresql://{at['USER']}@/{at['NAME']}?host={host}"
    login = f"{at['USER']}:{at['PASSWORD']}"
    return f"postgresql://{login}@{host}:{at['PORT'] or 5432}/{at['NAME']}"


test_database_url.__test__ = False


@pytest.fixture
def app_environment(transactional_db) -> dict[str, str]:
    """Environment of a Cohort process with the test's database, Redis and data."""
    return {
        **os.environ,
        "DATABASE_URL": test_database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "COHORT_DATA": str(settings.COHORT_DATA),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        # That a team may choose; none is the default.
        "COHORT_RAY_TEAM_ADDRESSES": "ray-a:6379,ray-b:6379",
    }


@pytest.fixture
def parquet_in_process(monkeypatch) -> None:
    """Read and join Parquet files here: a child takes most of a second to start."""

    def call(
        module: str, *question: Any, seconds: float | None = None
    ) -> Iterator[Any]:
        yield from importlib.import_module(module).answer(*question)

    for caller in ("parsing.parquet", "fetching.fetches"):
        monkeypatch.setattr(f"dashboard.datasets.{caller}.call", call)


class WebProcesses:
    """One web process, reused between tests while its environment is the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._web: subprocess.Popen[bytes] | None = None
        self._env: dict[str, str] = {}
        self._port = 0
        self.log = folder / "web.log"  # of the current process

    def serve(self, env: dict[str, str]) -> str:
        """Returns its URL."""
        # These differ between tests, and the web process reads none of them.
        others = ("PYTEST_", "XDG_", "COHORT_TOKEN")
        env = {k: v for k, v in env.items() if not k.startswith(others)}
        if self._web is None or self._web.poll() is not None or env != self._env:
            self.stop()
            self._start(env, free_port())
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._web, "no web process was started"
        return self._web.pid

    def kill(self) -> None:
        """kill -9: open connections break."""
        assert self._web, "no web process was started"
        self._web.kill()
        self._web.wait()

    def end(self) -> None:
        """SIGTERM: open connections are closed properly."""
        assert self._web, "no web process was started"
        self._web.terminate()
        self._web.wait(10)

    def restart(self) -> None:
        """At the same URL."""
        self._start(self._env, self._port)

    def stop(self) -> None:
        if self._web is None:
            return
        self._web.terminate()
        try:
            self._web.wait(10)
        except subprocess.TimeoutExpired:
            self._web.kill()
            self._web.wait()
        self._web = None

    def _start(self, env: dict[str, str], port: int) -> None:
        self.log = self._folder / f"web-{port}.log"
        command = [sys.executable, "-m", *web(data=self._folder, port=port).arguments]
        with self.log.open("ab") as output:
            self._web = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=output, stderr=output
            )
        self._env, self._port = env, port
        _wait_until_served(f"http://127.0.0.1:{port}/healthz", self._web, self.log)


@pytest.fixture(scope="session")
def web_processes(tmp_path_factory) -> Iterator[WebProcesses]:
    processes = WebProcesses(tmp_path_factory.mktemp("web"))
    yield processes
    processes.stop()


@pytest.fixture
def live_app(app_environment, web_processes) -> Iterator[str]:
    """URL of a web process with the test's database; rows must be committed."""
    yield web_processes.serve(app_environment)
    # Emptying the tables would wait for running requests.
    _wait_until_idle()


def _wait_until_idle() -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle'"
                " AND datname = current_database() AND pid <> pg_backend_pid()"
            )
            if cursor.fetchone() == (0,):
                return
        time.sleep(0.05)
    raise AssertionError(
        "The web process still queries the database 30 s after its test."
    )


def _wait_until_served(url: str, web: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert web.poll() is None, f"the web process ended:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - loopback
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(f"{url} was not served within 60 s:\n{log.read_text()}")


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    # Playwright's loop stays open in this thread; Django would assume async code.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright) -> Iterator[Browser]:
    """The system's Chromium, which `make test` installs if possible."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "Browser tests need chromium (apt-get install chromium)."
    browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
    yield browser
    browser.close()


@pytest.fixture
def open_browser(
    browser, live_app
) -> Iterator[Callable[[User | None], BrowserContext]]:
    """Opens a new browser profile, signed in as this user; base_url is the live app."""
    contexts: list[BrowserContext] = []

    def open_as(user: User | None) -> BrowserContext:
        context = browser.new_context(
            base_url=live_app,
            viewport={"width": 1440, "height": 900},
            # Otherwise axe may see a colour in the middle of a theme transition.
            reduced_motion="reduce",
        )
        if user is not None:
            sign_in(context, user, live_app)
        contexts.append(context)
        return context

    yield open_as
    for context in contexts:
        context.close()


@pytest.fixture
def page(alice, open_browser) -> Page:
    """A page of Alice's browser."""
    return open_browser(alice).new_page()


def set_password(user: User, password: str) -> None:
    """Hashed for web processes; tests use another hash, see conftest.py."""
    user.password = PBKDF2PasswordHasher().encode(password, get_random_string(22))
    user.save(update_fields=["password"])


def sign_in(context: BrowserContext, user: User, address: str) -> None:
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    value = client.cookies[name].value
    context.add_cookies([{"url": address, "name": name, "value": value}])
