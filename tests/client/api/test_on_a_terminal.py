"""Output on a terminal."""

import os
import pty
import subprocess
import sys
from typing import Any

from tests.client.api.scripted import IMPORT, VERSION, Scripted, run_tree
from tests.environment import python_path

ME = {
    "person": {"username": "a", "name": "A"},
    "team": {"slug": "lab", "name": "Lab"},
    "role": "member",
    "scopes": ["read"],
    "token": "t",
    "expires_at": None,
}


def run(state: str, step: int) -> Any:
    return 200, {}, run_tree() | {"state": state, "last_step": step, "num_steps": 4}


def points(**rewards: float) -> Any:
    trees = [
        {"step": int(name[1:]), "time": "2026-03-01T12:00:00Z", "values": values}
        for name, reward in rewards.items()
        for values in [{"reward/mean": reward}]
    ]
    return 200, {}, {"names": [], "points": trees, "next_cursor": None}


def on_a_terminal(url: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output, with ␡ for "clear to the end of the line"."""
    terminal, its_end = pty.openpty()
    login = {"COHORT_URL": url, "COHORT_TOKEN": "t", "COLUMNS": "80"}
    child = subprocess.Popen(
        [sys.executable, "-m", "cohort", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": python_path(), **login},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
    )
    os.close(its_end)
    written = b""
    while piece := _read(terminal):
        written += piece
    os.close(terminal)
    return child.wait(), written.decode().replace("\x1b[K", "␡")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # it has ended
        return b""


def test_watch_starts_at_the_latest_step():
    polls = [run("running", 1), run("running", 1), points(_1=0.1)]
    end = [run("finished", 4), points(_1=0.1, _4=0.4), (200, {}, ME)]
    with Scripted(*polls, *end) as server:
        code, seen = on_a_terminal(server.url, "runs", "watch", "7", "--every", "0.2")

    assert code == 0
    assert "first_step=1" in server.requests[2][0]
    steps = ["run 7 running", "step 1/4  reward 0.1", "run 7 finished"]
    assert seen.split("\r\n")[:4] == [*steps, "step 4/4  reward 0.4"]
    assert seen.endswith(f"4 of 4. {server.url}/lab/runs/7/\r\n")


def test_an_upload_shows_a_progress_line_and_clears_it(tmp_path):
    file = tmp_path / "sums.jsonl"
    file.write_bytes(b"{}\n" * 100_000)
    begun = {"id": 9, "num_received": 100_000, "is_whole": False}
    sent = begun | {"num_received": 300_000}
    done = IMPORT | {"state": "done", "version": VERSION}
    with Scripted((200, {}, begun), (200, {}, sent), (202, {}, done)) as server:
        code, seen = on_a_terminal(server.url, "datasets", "push", str(file))

    assert code == 0
    assert "\r␡Uploading sums.jsonl 97.7 KiB of 293.0 KiB" in seen
    assert "\r␡sums@2 has 1 row" in seen
