"""Processes that are started together end together, whatever they are."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.waiting import wait_until
from trainer.parallel import launch
from trainer.parallel.launch import Family, command_of

FOR_EVER = "import time; time.sleep(600)"
BY_RANK = "import os, sys, time; rank = int(os.environ['RANK']); "


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def family(code: str, *, count: int = 2) -> Family:
    return Family([sys.executable, "-c", code], count=count)


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_common_exit_code_is_the_runs(code):
    with family(f"raise SystemExit({code})") as members:
        assert members.wait() == code


def test_differing_exit_codes_fail_the_run():
    with family(BY_RANK + "sys.exit(rank)", count=3) as members:
        assert members.wait() == 1


def test_each_knows_its_place_and_where_they_meet(tmp_path):
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR"
    code = (
        BY_RANK + f"open(f'{tmp_path}/{{rank}}', 'w').write(' '.join("
        f"os.environ[name] for name in '{names}'.split()))"
    )

    with family(code) as members:
        assert members.wait() == 0

    assert (tmp_path / "0").read_text() == "0 0 2 2 127.0.0.1"
    assert (tmp_path / "1").read_text() == "1 1 2 2 127.0.0.1"


def test_a_dead_process_ends_the_others_after_a_grace(monkeypatch, capsys):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.2)
    dies = BY_RANK + "rank == 2 and os.kill(os.getpid(), 9); time.sleep(600)"
    before = time.monotonic()

    with family(dies, count=3) as members:
        assert members.wait() == -9

    assert time.monotonic() - before < 20
    reported = capsys.readouterr().err
    assert "Process 2 of 3" in reported
    assert "SIGKILL" in reported
    assert "Process 0 of 3" in reported


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("os.kill(os.getpid(), 9)", "sys.exit(1)", -9),  # it lost the other one
        pytest.param("sys.exit(1)", "os.abort()", 1, marks=pytest.mark.slow),
        pytest.param("sys.exit(2)", "os.abort()", 1, marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", "os.abort()", -6, marks=pytest.mark.slow),
        # and is killed by us
        pytest.param("sys.exit(3)", "time.sleep(600)", 1, marks=pytest.mark.slow),
    ],
)
def test_the_first_fault_of_any_is_that_of_all(first, second, expected, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 2)
    code = (
        f"{BY_RANK}exec({first!r} if rank == 0 else {'time.sleep(0.3); ' + second!r})"
    )

    with family(code) as members:
        assert members.wait() == expected


def test_a_stop_is_asked_of_all(tmp_path):
    stops = "import signal; signal.signal(15, lambda *_: sys.exit(3)); "
    ready = f"open(f'{tmp_path}/{{rank}}', 'w').close(); "

    def stop() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    with family(f"{BY_RANK}{stops}{ready}time.sleep(600)") as members:
        waiting = threading.Thread(target=stop)
        waiting.start()

        assert members.wait() == 3
    waiting.join()


def test_leaving_ends_all_remaining_processes():
    with family(FOR_EVER) as members:
        pids = [member.pid for member in members._members]

    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_processes_get_the_arguments_of_the_command():
    args = argparse.Namespace(
        config=Path("a.toml"),
        out=Path("out"),
        attempt=3,
        checkpoints=None,
        attempts=Path("attempts"),
        resume=False,
        resume_from=Path("step-1"),
        passed_over=["damaged"],
    )

    assert command_of(args)[1:] == [
        *("-m", "trainer", "run", "a.toml"),
        *("--out", "out", "--attempt", "3", "--attempts", "attempts"),
        *("--resume-from", "step-1"),
        *("--passed-over", "damaged"),
    ]


@pytest.mark.parametrize(
    ("code", "end", "expected"),
    [
        (
            "os.kill(os.getpid(), 9)",
            -9,
            "killed with SIGKILL",
        ),
        ("os.abort()", -6, "crashed (SIGABRT)"),
    ],
)
def test_a_kill_is_distinguished_from_a_crash(code, end, expected, capfd):
    with family(f"import os; {code}", count=1) as members:
        assert members.wait() == end

    assert expected in capfd.readouterr().err


def test_they_share_out_the_cores_that_they_may_use(monkeypatch, tmp_path):
    """A container on a large machine may have few of its cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    name = "os.environ['OMP_NUM_THREADS']"

    with family(BY_RANK + f"open(f'{tmp_path}/{{rank}}', 'w').write({name})") as ones:
        assert ones.wait() == 0

    assert [(tmp_path / rank).read_text() for rank in "01"] == ["3", "3"]
