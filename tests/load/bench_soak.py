"""Hours of streaming in minutes: `pytest -m load -s tests/load/bench_soak.py`.

8 hours of a step every 5 s are 5,760 steps, sent here as fast as COHORT_LOAD_EVENTS a
second, each step four groups of eight completions and its end. Pages come and go all
the time, and some stay. Measured is the resident memory of the web process and of the
supervisor, which ingests, the own memory of workers, PostgreSQL and Redis, and of all
that `up` started processes, connections of PostgreSQL and open files.
bench_streaming.py measures the browser's.
COHORT_LOAD_STEPS says how many.

And COHORT_LOAD_BATCHES batches of 29 MB (a few hundred KB as gzip) of three external
trainers of one person, at once: the resident memory of the web process before and
after.
"""

import gzip
import json
import os
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.bench.machine import heading, say, table
from tests.dashboard.api.asking import make_token
from tests.load.stack import peak_mb, resident_mb, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_STEPS = int(os.environ.get("COHORT_LOAD_STEPS", "5760"))
EVENTS = float(os.environ.get("COHORT_LOAD_EVENTS", "100"))
NUM_GROUPS = 4
NUM_READINGS = 8
NUM_STAYING, NUM_PASSING = 10, 10
CONNECTION_MB = 16
NUM_BATCHES = int(os.environ.get("COHORT_LOAD_BATCHES", "112"))
BATCH_BYTES = 29_000_000
NUM_TRAINERS = 3  # as many as may send at once
LARGEST_MB = 700
API = "/api/v1/external-runs"
OTHERS = ("workers", "Redis", "PostgreSQL")


def test_the_server_does_not_grow():
    pace = Pace(num_steps=NUM_STEPS, events_per_second=EVENTS, num_groups=NUM_GROUPS)
    rows: list[list[str]] = []
    webs, supervisors, prints = [], [], []
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="staying", count=NUM_STAYING)
        show.go()
        begin, visits, supervisor = time.monotonic(), 0, 0.0
        for reading in range(1, NUM_READINGS + 1):
            # The last one before the run ends: its end loads what it needs, once.
            until = begin + pace.seconds * reading / (NUM_READINGS + 1)
            while time.monotonic() < until:
                crowd.ask("come", group="passing", count=NUM_PASSING)
                time.sleep(1)
                crowd.ask("leave", group="passing")
                visits += NUM_PASSING
            web = resident_mb(stack.web_pid)
            if show.process.poll() is None:
                supervisor = resident_mb(show.process.pid)
            webs.append(web)
            supervisors.append(supervisor)
            prints.append(stack.footprint())
            rows.append(
                [
                    f"{time.monotonic() - begin:.0f} s",
                    f"{visits:,}",
                    f"{web:.1f} MB",
                    f"{supervisor:.1f} MB",
                    *(f"{prints[-1].megabytes[part]:.1f} MB" for part in OTHERS),
                    f"{prints[-1].connection_mb:.1f} MB",
                    f"{prints[-1].num_processes}",
                    f"{prints[-1].num_connections}",
                    f"{prints[-1].num_files}",
                ]
            )
        show.wait_for_end()
        truth = stack.truth(show.scene)
        ended = crowd.ask("finish", group="staying", truth=truth)
    title = f"{NUM_STEPS:,} steps of {NUM_GROUPS} groups"
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    memory = ("web process", "supervisor", *OTHERS, "largest connection")
    counted = ("processes", "connections", "open files")
    say(table((title, "visits so far", *memory, *counted), rows))
    assert ended["faults"] == []
    half = prints[NUM_READINGS // 2]
    assert prints[-1].num_connections <= half.num_connections + 2  # two are just open
    assert prints[-1].num_others <= half.num_others
    assert prints[-1].num_files <= half.num_files + 10
    # After each thread and connection has been used once.
    others = [
        [each.megabytes[part] for each in prints] for part in ("workers", "Redis")
    ]
    for megabytes in (webs, supervisors, *others):
        assert megabytes[-1] < 1.05 * megabytes[1]
    # A connection grows with its first expensive page, each connection of a pool in
    # turn, so PostgreSQL as a whole grows for longer.
    assert max(each.connection_mb for each in prints) < CONNECTION_MB


class Trainer:
    """An external trainer that sends groups of eight completions of 600 characters."""

    def __init__(self, address: str, token: str) -> None:
        self._host = urlsplit(address).netloc
        self._headers = {"Authorization": f"Bearer {token}"}
        opened = {"key": str(uuid4()), "name": "large", "tool": "other"}
        body = json.dumps(opened).encode()
        self._run = self._post("", body, {"Content-Type": "application/json"})["id"]
        self._line = 0

    def send(self) -> int:
        """One batch; how many bytes it has as gzip."""
        lines, num_bytes, first = [], 0, self._line + 1
        while num_bytes < BATCH_BYTES:
            self._line += 1
            lines.append(_group(self._line))
            num_bytes += len(lines[-1])
        body = gzip.compress(b"".join(lines))
        place = f"/{self._run}/events?attempt=1&first={first}"
        kind = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        position = self._post(place, body, kind)
        assert position["line"] == self._line
        assert not position["num_left_out"], position["left_out"]
        return len(body)

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> Any:
        connection = HTTPConnection(self._host, timeout=600)
        with closing(connection):
            connection.request("POST", API + path, body, self._headers | headers)
            response = connection.getresponse()
            assert response.status < 300, response.read()
            return json.load(response)


def _group(line: int) -> bytes:
    completion = {
        "text": f"{line} " + "and so on " * 60, "reward": 1.0, "rules": {"a": 1.0},
        "advantage": 0.0, "num_tokens": 100, "mean_logprob": -0.1, "end_reason": "stop",
    }  # fmt: skip
    group = {
        "type": "group_scored", "line": line, "attempt": 1, "time": time.time(),
        "step": line, "prompt_index": 0, "prompt": "p", "answer": "a",
        "reward_mean": 1.0, "reward_std": 0.0, "signal": "all_right",
        "completions": [completion] * 8,
    }  # fmt: skip
    return json.dumps(group).encode() + b"\n"


def test_large_batches_leave_the_web_process_small(live_app, web_processes, alice):
    pid, token = web_processes.pid, make_token(alice, "ingest")
    trainers = [Trainer(live_app, token) for _ in range(NUM_TRAINERS)]
    before, begin = resident_mb(pid), time.monotonic()
    sizes: list[int] = []

    def send_all(trainer: Trainer) -> None:
        sizes.extend(trainer.send() for _ in range(NUM_BATCHES // NUM_TRAINERS))

    threads = [threading.Thread(target=send_all, args=[t]) for t in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    after, peak = resident_mb(pid), peak_mb(pid)
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    title = f"{len(sizes)} batches, {max(sizes) / 1e3:,.0f} KB each"
    figures = [f"{before:.0f} MB", f"{after:.0f} MB", f"{peak:.0f} MB"]
    say(table((title, "before", "after", "peak"), [[f"{seconds:.0f} s", *figures]]))
    assert len(sizes) == NUM_BATCHES // NUM_TRAINERS * NUM_TRAINERS
    assert after < LARGEST_MB
