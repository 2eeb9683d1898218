"""`manage.py up` as a person meets it: a terminal, a link, Ctrl-C."""

import http.cookiejar
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


class Terminal:
    """One `up`, with what it has printed so far."""

    def __init__(self, data: Path, port: int, *options: str) -> None:
        env = {k: v for k, v in os.environ.items() if not k.endswith("_URL")}
        env |= {"COHORT_DATA": str(data), "COHORT_PORT": str(port)}
        self.printed = data.parent / f"printed-{time.monotonic_ns()}"
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *options],
                cwd=ROOT,
                env=env,
                stdout=output,
                stderr=output,
            )

    def text(self) -> str:
        return self.printed.read_text()

    def wait_for_link(self, seconds: float = 300) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(r"http://\S+/sign-in/\S+", self.text())
            if found:
                return found.group()
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)
        raise AssertionError(f"no link after {seconds} s:\n{self.text()}")

    def stop(self, sig: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(30)


@pytest.fixture
def start(data, port) -> Iterator[Callable[..., Terminal]]:
    """Start `up` on the test's folder, and stop it in any case."""
    terminals: list[Terminal] = []

    def start_up(*options: str) -> Terminal:
        terminals.append(Terminal(data, port, *options))
        return terminals[-1]

    yield start_up
    for terminal in terminals:
        terminal.stop()


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    """Of all tests here: to set it up takes half a minute."""
    with tempfile.TemporaryDirectory(prefix="cohort-up-", dir="/tmp") as name:
        yield Path(name) / "data"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
        return free


def processes_of(data: Path) -> list[str]:
    """Command lines that name the data folder, or that have it in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(data).encode() in command + environment:
            found.append(command.replace(b"\0", b" ").decode())
    return found


def sign_in(link: str) -> str:
    """Follow the link as a browser does: look at it, then press its button."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = browser.open(link, timeout=20).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    if token is None:
        return page
    form = urllib.parse.urlencode({"csrfmiddlewaretoken": token.group(1)}).encode()
    answer = browser.open(link, form, timeout=20)
    return str(answer.geturl())


def open_to_others(data: Path) -> list[Path]:
    """What another user of this machine can list or read, but for what PostgreSQL's own
    user passes through.
    """
    own = {data / "postgres", data / "sockets"}
    return [
        path
        for top in set(data.iterdir()) - own
        for path in (top, *top.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


@pytest.mark.slow  # and in tests/smoke.txt
def test_it_starts_prints_a_link_that_signs_in_and_stops_leaving_nothing(
    start, data, port
):
    terminal = start("--no-starter")

    landed = sign_in(terminal.wait_for_link())
    returncode = terminal.stop()

    assert landed.startswith(f"http://localhost:{port}/")
    assert "/sign-in/" not in landed
    assert returncode == 0, terminal.text()
    assert processes_of(data) == []
    assert open_to_others(data) == []


@pytest.mark.slow
def test_a_second_start_on_the_same_folder_is_refused(start):
    first = start("--no-starter")
    first.wait_for_link()

    second = start("--no-starter")

    assert second.process.wait(60) == 1
    assert "already running" in second.text()
    assert "Traceback" not in second.text()
    assert first.process.poll() is None


@pytest.mark.slow
def test_a_port_in_use_is_reported_before_anything_is_started(tmp_path, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        terminal = Terminal(tmp_path / "data", port)
        try:
            assert terminal.process.wait(60) == 1
        finally:
            terminal.stop()

    assert f"Port {port} is in use" in terminal.text()
    assert "Traceback" not in terminal.text()
    assert not (tmp_path / "data/postgres").exists()


@pytest.mark.slow
def test_a_second_start_finds_everything(start):
    first = start("--no-starter")
    sign_in(first.wait_for_link())
    first.stop(signal.SIGTERM)

    second = start("--no-starter")
    landed = sign_in(second.wait_for_link())

    assert "/sign-in/" not in landed


@pytest.mark.slow
def test_a_killed_start_leaves_no_process_and_no_obstacle(start, data):
    first = start("--no-starter")
    first.wait_for_link()
    first.process.kill()
    first.process.wait()

    second = start("--no-starter")
    second.wait_for_link()
    second.stop()

    assert processes_of(data) == []


@pytest.mark.slow
def test_killed_processes_are_restarted(start, data, port):
    terminal = start("--no-starter")
    terminal.wait_for_link()
    postmaster = int((data / "postgres/postmaster.pid").read_text().split()[0])

    os.kill(postmaster, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while "(SIGKILL)" not in terminal.text() or not is_ready(port):
        assert time.monotonic() < deadline, terminal.text()
        time.sleep(0.2)
    terminal.stop()

    assert processes_of(data) == []


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20):
            return True
    except OSError:
        return False
