"""A trainer's lines have times, and its log is not touched for it."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.models import Run
from dashboard.runs.queries import AttemptDirectory, run_directory
from dashboard.supervision.lease import claim_run
from dashboard.supervision.log_reading import LogClock, read_times, stamp_of


class Clocked:
    """A log that is written at chosen times."""

    def __init__(self, log: Path, times: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.times = log, times
        self._monkeypatch = monkeypatch
        log.write_text("")
        self.clock = LogClock(log, times=times)

    def write(self, text: str, *, at: float | None) -> None:
        with self.log.open("a") as file:
            file.write(text)
        if at is not None:
            self._monkeypatch.setattr("time.time", lambda: at)
            self.clock.update()

    def read(self) -> list[float | None]:
        starts, at = [], 0
        for line in self.log.read_bytes().splitlines(keepends=True):
            starts.append(at)
            at += len(line)
        return read_times(self.times, starts, log=self.log)


@pytest.fixture
def clocked(tmp_path, monkeypatch) -> Clocked:
    return Clocked(tmp_path / "log", tmp_path / "times", monkeypatch)


def test_each_line_has_the_time_at_which_it_was_first_seen(clocked):
    clocked.write("1\n2\n", at=10.0)
    clocked.write("3", at=20.0)
    clocked.write("a\n4\n", at=30.0)
    clocked.clock.update()  # nothing is new

    assert clocked.read() == [10.0, 10.0, 20.0, 30.0]
    assert clocked.times.stat().st_size == 3 * 16
    assert clocked.log.read_text() == "1\n2\n3a\n4\n"


def test_an_unrecorded_line_has_the_time_of_its_writing(clocked):
    clocked.write("one\n", at=10.0)
    clocked.write("two\n", at=None)
    os.utime(clocked.log, (12.5, 12.5))

    assert clocked.read() == [10.0, 12.5]


def test_an_older_log_has_no_times(tmp_path):
    (tmp_path / "log").write_text("one\n")

    times = read_times(tmp_path / "times", [0], log=tmp_path / "log")

    assert times == [None]


def test_the_remaining_lines_of_a_log_keep_their_times(clocked):
    for number in range(10):
        clocked.write(f"line {number}\n", at=float(number))
    message = "[49 bytes left out]\n"
    clocked.log.write_text(message + "line 7\nline 8\nline 9\n")
    clocked.clock.move(49 - len(message))

    assert clocked.read()[1:] == [7.0, 8.0, 9.0]
    clocked.write("line 10\n", at=10.0)
    assert clocked.read()[1:] == [7.0, 8.0, 9.0, 10.0]


def test_a_workers_line_has_its_own_timestamp():
    assert stamp_of("1970-01-01 00:01:00 Claimed.") == 60.0
    assert stamp_of("1970-01-01 00:01:00.250 Claimed.") == 60.25
    assert stamp_of("Traceback") is None


@pytest.fixture
def attempt(run) -> AttemptDirectory:
    claim_run(run.id, "training@gpu-1")
    files = run_directory(run.id).attempt(1)
    files.path.mkdir(parents=True)
    return files


def ask(client: Client, name: str, run: Run, **query: object) -> Any:
    response = client.get(reverse(name, args=["alpha", run.id]), query)
    assert response.status_code == 200, response.content
    return response.json()


def test_parts_of_both_logs_come_with_times(alice_client, run, attempt, monkeypatch):
    clocked = Clocked(attempt.trainer_log, attempt.trainer_times, monkeypatch)
    clocked.write("loss 1\n", at=60.5)
    monkeypatch.undo()
    attempt.supervisor_log.write_text("1970-01-01 00:01:00.250 Claimed.\nmore\n")

    page = alice_client.get(reverse("run_logs", args=["alpha", run.id]))
    own = ask(alice_client, "run_log_part", run, source="trainer")
    worker = ask(alice_client, "run_log_part", run, source="supervisor")

    assert 'data-source="trainer"' in page.content.decode()
    assert [(line["text"], line["time"]) for line in own["lines"]] == [("loss 1", 60.5)]
    assert [line["time"] for line in worker["lines"]] == [60.25, None]


def test_a_log_without_times_is_shown_without(alice_client, run, attempt):
    attempt.trainer_log.write_text("step 1\n")

    page = alice_client.get(reverse("run_logs", args=["alpha", run.id]))
    own = ask(alice_client, "run_log_part", run)

    html = page.content.decode()
    assert 'data-source="trainer"' in html
    assert "have no times" in html
    assert [line["time"] for line in own["lines"]] == [None]
