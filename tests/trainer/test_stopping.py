"""SIGTERM ends a run that still loads, at once and in order."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import run_here
from tests.trainer.tiny import (
    ROOT,
    config_tree,
    only,
    read_events,
    run_trainer,
    start_trainer,
    write_config,
)
from tests.trainer.waiting import wait_until
from trainer.stopping import SIGNALS, Stopped, StopSwitch


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped(body: str) -> tuple[int, str]:
    """What a process that is in the midst of `body` ends with, and what it says."""
    lines = [
        "import hashlib, os, signal, threading, time",
        "from trainer import stopping",
        "stopping.GRACE_SECONDS = 0.2",
        "switch = stopping.StopSwitch(exit_code=3)",
        "switch.on_exit = lambda: print('bye', flush=True)",
        "asks = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))",
        "with switch.at_once():",
        "    asks.start()",
        *(f"    {line}" for line in body.splitlines()),
    ]
    done = run_here(sys.executable, "-c", "\n".join(lines), timeout=30)
    return done.returncode, done.stdout


HASHES = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # minutes of C
SWALLOWS = """\
while True:
    try:
        time.sleep(60)
    except BaseException:
        continue"""


@pytest.mark.parametrize("body", [HASHES, SWALLOWS])
def test_a_library_that_ignores_signals_is_abandoned_after_a_grace_period(body):
    assert stopped(body) == (3, "bye\n")


def test_python_code_is_left_at_once():
    code, message = stopped("time.sleep(60)")

    assert (code, message) == (1, "")  # by Stopped, which no one here takes


def test_a_failure_after_a_stop_request_counts_as_the_stop():
    """As a connection to another process does, which was asked as well."""
    stops = StopSwitch(exit_code=3)

    def fail() -> None:
        stops.is_set = True
        raise ValueError

    with pytest.raises(Stopped), stops.at_once():
        fail()


def test_an_earlier_stop_request_ends_loading():
    stops = StopSwitch(exit_code=3)
    with stops.at_once():
        pass
    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped), stops.at_once():
        raise AssertionError


@pytest.fixture
def config(rows_path, tmp_path) -> Path:
    return write_config(tmp_path, config_tree(Path("org/tiny"), rows_path))


@pytest.fixture
def silent_hub() -> Iterator[dict[str, str]]:
    """The environment of a trainer whose hub takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}


@pytest.mark.slow  # torch is loaded again
def test_a_run_that_waits_for_a_hub_stops(config, silent_hub):
    log = config.parent / "out" / "events.jsonl"
    trainer = start_trainer("run", config, "--out", log.parent, env=silent_hub)
    wait_until(log.exists)
    time.sleep(0.2)

    trainer.terminate()
    output, _ = trainer.communicate(timeout=60)

    assert trainer.returncode == 3, output
    (event,) = read_events(log)
    assert (event["type"], event["step"]) == ("run_stopped", 0)
    assert event["checkpoint"] is None


@pytest.mark.slow
def test_a_run_that_loads_torch_stops_as_well(config):
    trainer = start_trainer("run", config, "--out", config.parent / "out")
    maps = Path(f"/proc/{trainer.pid}/maps")
    wait_until(lambda: "libtorch" in maps.read_text())

    trainer.send_signal(signal.SIGINT)
    output, _ = trainer.communicate(timeout=60)

    assert trainer.returncode == 3, output


@pytest.mark.slow  # torch is loaded three times
def test_several_processes_that_load_stop_together(rows_path, tmp_path, silent_hub):
    tree = config_tree(
        Path("org/tiny"),
        rows_path,
        model={"device": "cpu"},
        distributed={"num_processes": 2},
    )
    log = tmp_path / "out" / "events.jsonl"
    trainer = start_trainer(
        "run", write_config(tmp_path, tree), "--out", log.parent, env=silent_hub
    )
    wait_until(log.exists)

    trainer.terminate()
    output, _ = trainer.communicate(timeout=60)

    assert trainer.returncode == 3, output
    assert [event["type"] for event in read_events(log)] == ["run_stopped"]


@pytest.mark.slow  # torch is loaded again
def test_a_resumed_run_names_where_it_would_have_continued(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, optim={"num_steps": 2})
    config, out = write_config(tmp_path, tree), tmp_path / "out"
    run_trainer("run", config, "--out", out)
    [saved] = only(read_events(out / "events.jsonl"), "checkpoint_saved")
    loads = (
        "import os, signal, sys, time, trainer.run.run\n"
        "from trainer.__main__ import main\n"
        "def prepare(*_, **__): os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "trainer.run.run.prepare = prepare\n"
        "sys.exit(main(sys.argv[1:]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", loads, "run", config, "--out", out, "--resume"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )

    assert done.returncode == 3
    (event,) = read_events(out / "events.jsonl")
    assert (event["type"], event["step"]) == ("run_stopped", 2)
    assert event["checkpoint"] == saved["name"]
