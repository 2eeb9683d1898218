"""A large file through the front door: `pytest -m load -s tests/load/bench_upload.py`.

COHORT_LOAD_MB megabytes of JSON lines (1,000) are sent in parts by `cohort` and
imported by the default worker, all on this machine. Memory is the most that the web
process, and any process of the workers, has ever held.
"""

import json
import os
import time
from pathlib import Path

import pytest

from cohort import Client
from tests.bench.bench_import import record
from tests.bench.machine import heading, say, table
from tests.load.stack import peak_mb, resident_mb, running_stack

pytestmark = pytest.mark.load
NUM_MB = int(os.environ.get("COHORT_LOAD_MB", "1000"))


def test_a_large_file_becomes_a_dataset(tmp_path):
    path = tmp_path / "large.jsonl"
    num_rows = write(path)
    num_mb = path.stat().st_size / 1e6
    sent_at: list[float] = []
    with running_stack() as stack:
        idle = resident_mb(stack.web_pid)
        client = Client(stack.address, stack.stage("token").strip())
        begin = time.monotonic()
        version = client.datasets.push(
            path,
            name="large",
            prompt="question",
            answer="answer",
            columns=["level", "solution"],
            on_upload=lambda _done, _of: sent_at.append(time.monotonic()),
        )
        end = time.monotonic()
        web, workers = stack.web_pid, stack.pids()["workers"]
        peaks = (peak_mb(web), max(peak_mb(pid) for pid in workers))
    sent, imported = sent_at[-1] - begin, end - sent_at[-1]
    say("\n" + heading("pytest", packages=("django", "psycopg", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    rows = [
        ["sent and kept", f"{sent:.1f} s", f"{num_mb / sent:.1f} MB a second"],
        ["imported", f"{imported:.1f} s", f"{num_mb / imported:.1f} MB a second"],
        ["the web process, at most", f"{peaks[0]:.0f} MB", f"{idle:.0f} MB before"],
        ["a worker's process, at most", f"{peaks[1]:.0f} MB", ""],
    ]
    say(table((f"{num_mb:,.0f} MB, {num_rows:,} rows", "", ""), rows))
    assert version.num_rows == num_rows


def write(path: Path) -> int:
    number = 0
    with path.open("w", encoding="utf-8") as file:
        while number % 1_000 or file.tell() < NUM_MB * 1e6:
            file.write(json.dumps(record(number), ensure_ascii=False) + "\n")
            number += 1
    return number
