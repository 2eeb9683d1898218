"""The database is up, but rejects one thing: a lock or a full disk."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from dashboard.datasets import limits
from dashboard.runs.control import request_pause, request_stop
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.supervision.lease import claim_run
from dashboard.supervision.supervisor import supervise
from tests.dashboard.supervision.test_supervising_a_run import FAST, live, never, script

pytestmark = pytest.mark.django_db(transaction=True)
TIMING = replace(FAST, renew_seconds=0.05, release_patience_seconds=0.2)


@pytest.fixture(autouse=True)
def brief_waits(monkeypatch) -> None:
    """As in every worker, where it is 3 s."""
    monkeypatch.setitem(
        connection.settings_dict, "OPTIONS", {"options": "-c lock_timeout=100ms"}
    )
    connection.close()


@contextmanager
def held(table: str) -> Iterator[Callable[[], None]]:
    """Locked by another session, until it is let go."""
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {table}")
        yield other.rollback
    finally:
        other.close()


def journal_of(run: Run) -> str:
    return run_directory(run.id).attempt(1).supervisor_log.read_text()


def is_renewed(run: Run) -> bool:
    soon = Now() + timedelta(seconds=30)
    return Run.objects.filter(id=run.id, lease_until__gt=soon).exists()


def wait_until(check: Callable[[], bool]) -> Iterator[None]:
    until = time.monotonic() + 10
    while not check():
        assert time.monotonic() < until
        yield


def test_lines_of_a_run_wait_in_its_log_until_the_disk_has_space(
    run, monkeypatch, settings
):
    settings.DATABASE_IS_EMBEDDED = True
    monkeypatch.setattr(limits, "RESERVED_BYTES", 2**60)
    stored: list[int] = []

    def make_space() -> bool:
        if not stored and "Storing the log failed" in journal_of(run):
            stored.append(run.steps.count())
            monkeypatch.setattr(limits, "RESERVED_BYTES", 0)
        return False

    ended = live(run, "finish", make_space)

    assert (stored, ended.state) == ([0], RunState.FINISHED)
    assert run.steps.count() == 3


def test_a_log_that_cannot_be_stored_keeps_no_lease_and_no_request_waiting(run, alice):
    claim = claim_run(run.id, "worker-1")
    assert claim

    def is_held_and_read() -> bool:
        is_requested = "Asked the trainer to save and stop" in journal_of(run)
        return is_requested and is_renewed(run)

    def course() -> Iterator[None]:
        yield from wait_until(lambda: run.steps.count() >= 2)
        with held("runs_runevent") as let_go:
            yield from wait_until(lambda: "Storing the log failed" in journal_of(run))
            Run.objects.filter(id=run.id).update(lease_until=Now())
            request_stop(run=run, user=alice)
            yield from wait_until(is_held_and_read)
            let_go()

    turns = course()
    supervise(
        claim,
        is_shutting_down=lambda: bool(next(turns, None)),
        command=script("train_until_stopped"),
        timing=TIMING,
    )

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert run.checkpoints.get().step == run.last_step
    assert "succeeded after" in journal_of(run)
    assert "Renewing" not in journal_of(run)  # it never failed


@pytest.mark.parametrize(
    ("ask", "state"),
    [(request_stop, RunState.STOPPED), (request_pause, RunState.PAUSED)],
)
def test_a_waiting_preparation_follows_requests(run, alice, ask, state):
    claim = claim_run(run.id, "worker-1")
    assert claim
    ask(run=run, user=alice)

    with held("datasets_datasetrow"):
        supervise(
            claim, is_shutting_down=never, command=script("finish"), timing=TIMING
        )

    run.refresh_from_db()
    assert run.state == state
    assert "Started the trainer" not in journal_of(run)


def test_a_preparation_that_waits_ends_with_its_worker(run):
    claim = claim_run(run.id, "worker-1")
    assert claim

    with held("datasets_datasetrow"):
        supervise(
            claim,
            is_shutting_down=lambda: True,
            command=script("finish"),
            timing=TIMING,
        )

    run.refresh_from_db()
    assert run.state == RunState.STARTING
    assert "lease" in journal_of(run)


def test_a_waiting_preparation_keeps_its_run_and_continues(run):
    claim = claim_run(run.id, "worker-1")
    assert claim
    Run.objects.filter(id=run.id).update(lease_until=Now())

    def course(let_go: Callable[[], None]) -> Iterator[None]:
        yield from wait_until(lambda: is_renewed(run))
        let_go()

    with held("datasets_datasetrow") as let_go:
        turns = course(let_go)
        supervise(
            claim,
            is_shutting_down=lambda: bool(next(turns, None)),
            command=script("finish"),
            timing=TIMING,
        )

    run.refresh_from_db()
    assert run.state == RunState.FINISHED
    assert "succeeded after" in journal_of(run)
