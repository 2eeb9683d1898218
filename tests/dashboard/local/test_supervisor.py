import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dashboard.local import supervisor as supervising
from dashboard.local.data_folder import LocalFault
from dashboard.local.supervisor import Supervisor
from dashboard.project.subprocesses import start_child


class Sleeper:
    """A service that runs a line of Python."""

    name = "sleeper"

    def __init__(self, folder: Path, code: str) -> None:
        self.log = folder / "sleeper.log"
        self.code = code
        self.num_starts = 0
        self.is_up = True
        self.faults: list[Exception] = []
        self.child: subprocess.Popen[bytes] | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        if self.faults:
            raise self.faults.pop()
        self.num_starts += 1
        self.child = start_child([sys.executable, "-c", self.code], log=self.log)
        return self.child

    def is_ready(self) -> bool:
        return self.is_up


def wait_until(
    supervisor: Supervisor, is_true: Callable[[], bool], seconds: float = 20
) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        supervisor.check()
        time.sleep(0.01)


@pytest.fixture
def reported() -> list[str]:
    return []


def supervise(
    *processes: Sleeper, reported: list[str], servers: Sequence[Sleeper] = ()
) -> Supervisor:
    """With short pauses."""
    supervisor = Supervisor(processes, servers=servers, report=reported.append)
    for watch in supervisor.watches:
        watch.pause = 0.05
    supervisor.start()
    return supervisor


def test_an_exited_process_is_restarted_and_reported(tmp_path, reported):
    service = Sleeper(tmp_path, "import time; time.sleep(60)")
    supervisor = supervise(service, reported=reported)
    assert service.child is not None

    service.child.kill()
    wait_until(supervisor, lambda: service.num_starts == 2)
    supervisor.stop()

    assert "sleeper exited (SIGKILL)" in reported[0]
    assert str(service.log) in reported[0]


def test_pauses_grow_while_it_keeps_ending(tmp_path, reported):
    service = Sleeper(tmp_path, "raise SystemExit(4)")
    supervisor = supervise(service, reported=reported)
    pauses: list[float] = []

    while len(pauses) < 3:
        wait_until(supervisor, lambda: len(reported) > len(pauses))
        pauses.append(supervisor.watches[0].pause)
    supervisor.stop()

    assert pauses == pytest.approx([0.1, 0.2, 0.4])
    assert "exit 4" in reported[0]


def test_a_failed_restart_is_retried(tmp_path, reported):
    full, busy = LocalFault("the disk is full"), BlockingIOError(errno.EAGAIN, "busy")
    service = Sleeper(tmp_path, "import time; time.sleep(60)")
    supervisor = supervise(service, reported=reported)
    assert service.child is not None

    service.child.kill()
    service.child.wait()
    service.child, service.faults = None, [full, busy]
    wait_until(supervisor, lambda: service.num_starts == 2)
    supervisor.stop()

    tried = [1, 3]  # the other messages say that it exited
    assert [place for place, text in enumerate(reported) if "busy" in text] == tried[:1]
    assert [place for place, text in enumerate(reported) if "full" in text] == tried[1:]
    assert len(reported) == 5


def test_a_slow_server_is_awaited_and_reported(tmp_path, reported, monkeypatch):
    monkeypatch.setattr(supervising, "REPORT_SECONDS", 0.2)
    server = Sleeper(tmp_path, "import time; time.sleep(60)")
    process = Sleeper(tmp_path, "import time; time.sleep(60)")
    supervisor = supervise(process, servers=[server], reported=reported)
    first = server.spawn()

    server.is_up = False
    first.kill()
    wait_until(supervisor, lambda: len(reported) == 3)
    assert process.child is not None
    process.child.kill()  # others are looked after meanwhile
    wait_until(supervisor, lambda: process.num_starts == 2)
    server.is_up = True
    wait_until(supervisor, lambda: "is ready after" in reported[-1])
    supervisor.stop()
    assert server.child is not None
    server.child.kill()
    server.child.wait()

    assert "is not ready" in reported[1]
    assert str(server.log) in reported[1]
    assert server.num_starts == 2


def test_stopping_ends_a_process_that_ignores_the_request(
    tmp_path, reported, monkeypatch
):
    monkeypatch.setattr(supervising, "PATIENCE_SECONDS", 0.5)
    ready = tmp_path / "ready"
    service = Sleeper(
        tmp_path,
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)",
    )
    supervisor = supervise(service, reported=reported)
    wait_until(supervisor, ready.exists)

    supervisor.stop()

    assert service.child is not None
    assert service.child.returncode == -9


def test_children_die_with_a_killed_parent(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from dashboard.project.subprocesses import start_child\n"
        "child = start_child([sys.executable, '-c', 'import time; time.sleep(60)'],"
        f" log=pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()

    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A zombie that was not reaped is not alive."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
