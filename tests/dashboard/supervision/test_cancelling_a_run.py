"""Cancelling ends a run at once, in any state of trainer, worker and queue."""

import time
from dataclasses import replace

import pytest
from django.db.models.functions import Now

from dashboard.accounts.models import AuditEntry
from dashboard.runs.changes import extend_run
from dashboard.runs.control import cancel_run, request_stop
from dashboard.runs.models import Run, RunState
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import LeaseLost, claim_run, reap, renew
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.test_forking_a_run import keep
from tests.dashboard.supervision.test_supervising_a_run import FAST, after_steps, live


def test_a_trainer_that_heeds_nothing_is_killed_at_once(run, alice):
    begun: list[float] = []

    def act() -> None:
        begun.append(time.monotonic())
        cancel_run(run=run, user=alice)

    patient = replace(FAST, grace_seconds=120.0)
    ended = live(run, "ignore_requests", after_steps(1, run, act), timing=patient)

    assert time.monotonic() - begun[0] < 60  # it is given none of its grace
    assert ended.state == RunState.STOPPED
    assert ended.lease_until is None
    assert ended.stop_reason.startswith("Cancelled by alice")
    assert "step 1" in ended.stop_reason.lower()
    assert run.attempts.get().outcome == "cancelled at step 1"
    assert AuditEntry.objects.get(verb="run.cancelled").detail["was"] == "running"


def test_a_stopping_run_can_be_cancelled(run, alice):
    def act() -> None:
        request_stop(run=run, user=alice)
        assert cancel_run(run=run, user=alice)

    ended = live(run, "ignore_requests", after_steps(1, run, act))

    assert ended.state == RunState.STOPPED


def test_the_lost_steps_are_reported(run, alice):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    ingest(claim, LogBuilder().started().stepped(1).stepped(2).stepped(3).events)
    keep(run, 1)

    cancel_run(run=run, user=alice)

    run.refresh_from_db()
    assert "from step 1" in run.stop_reason
    assert "2 steps" in run.stop_reason
    assert run.steps.filter(superseded_by=None).count() == 3


def test_a_queued_run_is_cancelled(run, alice):
    assert cancel_run(run=run, user=alice)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert claim_run(run.id, "worker-1") is None
    assert not cancel_run(run=run, user=alice)


def test_a_run_without_worker_is_cancelled_and_not_requeued(run, alice):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None

    cancel_run(run=run, user=alice)
    Run.objects.filter(id=run.id).update(lease_until=Now())
    reap()

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    with pytest.raises(LeaseLost):
        renew(claim)


def test_a_cancelled_run_is_taken_up_at_its_last_checkpoint(run, alice):
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    ingest(claim, LogBuilder().started().stepped(1).stepped(2).events)
    keep(run, 1)
    cancel_run(run=run, user=alice)

    extend_run(run=run, user=alice, num_steps=10)
    after = live(run, "be_killed")

    assert after.stop_reason == ""
    assert run.attempts.get(number=2).from_step == 1
    assert run.steps.filter(superseded_by=2).exists()
