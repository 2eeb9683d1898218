import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from dashboard.accounts.models import AuditEntry
from dashboard.celery import app
from dashboard.runs.models import Run, RunState
from dashboard.supervision import lease
from dashboard.supervision.lease import RENEW_SECONDS, claim_run, renew
from dashboard.supervision.models import ReaperWatch, Worker
from tests.dashboard.supervision.machines import make_worker
from tests.environment import run_threads

AT_ONCE = timedelta(0)
SHORT = timedelta(seconds=5)  # for longer than that the tests' database is up
LATE = timedelta(seconds=70)
pytestmark = pytest.mark.django_db


def claim(run: Run) -> None:
    Run.objects.filter(id=run.id).update(not_before=None)
    assert claim_run(run.id, "worker-1") is not None


def expire(run: Run) -> None:
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))


def rest_seconds(run: Run) -> float:
    rest = Run.objects.annotate(rest=F("not_before") - Now()).get(id=run.id).rest
    return float(rest.total_seconds())


def test_a_run_with_a_lease_is_not_reaped(run):
    claim(run)

    assert lease.reap(grace=AT_ONCE) == []


def test_a_lost_run_is_queued_again_after_growing_rests(run):
    rests = []
    for _ in range(3):
        claim(run)
        expire(run)
        assert lease.reap(grace=AT_ONCE) == [run.id]
        rests.append(rest_seconds(run))

    run.refresh_from_db()
    assert rests == pytest.approx([10, 30, 90], abs=1)
    assert (run.state, run.num_losses, run.lease_until) == (RunState.QUEUED, 3, None)
    assert "worker-1" in run.attempts.latest("number").outcome
    assert AuditEntry.objects.filter(verb="run.lost").count() == 3


def test_a_fourth_loss_in_a_row_is_the_end(run):
    for _ in range(4):
        claim(run)
        expire(run)
        lease.reap(grace=AT_ONCE)

    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "4 times" in run.fail_reason
    assert run.finished_at is not None


def test_a_run_that_was_being_stopped_is_stopped(run):
    claim(run)
    Run.objects.filter(id=run.id).update(state=RunState.STOPPING)
    expire(run)

    lease.reap(grace=AT_ONCE)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED


def test_reaping_again_changes_nothing(run):
    claim(run)
    expire(run)
    lease.reap(grace=AT_ONCE)
    before = Run.objects.filter(id=run.id).values().get()

    assert lease.reap(grace=AT_ONCE) == []
    assert Run.objects.filter(id=run.id).values().get() == before


def test_after_a_database_outage_supervisors_get_time_to_report(run):
    claim(run)
    expire(run)

    assert lease.reap(grace=timedelta(days=1)) == []


def checked_ago(seconds: float, *, began: float) -> None:
    """When the reaper last ran, and since when it runs without gaps."""
    ReaperWatch.objects.update_or_create(
        id=1,
        defaults={
            "looked_at": Now() - timedelta(seconds=seconds),
            "since": Now() - timedelta(seconds=began),
        },
    )


def test_in_an_ordinary_round_a_lost_run_is_found_at_once(run):
    claim(run)
    expire(run)
    checked_ago(15, began=90)

    assert lease.reap(grace=SHORT) == [run.id]


@pytest.mark.parametrize("asleep", [45, 3_600])
def test_after_a_sleep_living_supervisors_renew_first(run, asleep):
    held = claim_run(run.id, "worker-1")
    assert held is not None
    expire(run)
    checked_ago(asleep, began=7_200)

    assert lease.reap(grace=SHORT) == []
    assert lease.reap(grace=SHORT) == []  # sent twice on waking
    renew(held)
    checked_ago(15, began=15)

    assert lease.reap(grace=SHORT) == []


def test_after_a_sleep_a_lost_run_is_found_a_round_later(run):
    claim(run)
    expire(run)
    checked_ago(3_600, began=7_200)

    assert lease.reap(grace=SHORT) == []
    checked_ago(15, began=15)

    assert lease.reap(grace=SHORT) == [run.id]


def test_looks_that_always_come_late_find_lost_runs(run):
    claim(run)
    expire(run)
    checked_ago(70, began=7_200)

    assert lease.reap(grace=SHORT) == []
    ReaperWatch.objects.update(since=F("since") - LATE, looked_at=F("looked_at") - LATE)

    assert lease.reap(grace=SHORT) == [run.id]


def test_a_check_interval_is_shorter_than_a_gap_and_a_renewal():
    round_seconds = app.conf.beat_schedule["reap"]["schedule"]

    assert lease.TURN.total_seconds() > RENEW_SECONDS
    assert round_seconds + RENEW_SECONDS < lease.GAP.total_seconds()


def test_after_a_sleep_workers_of_long_ago_may_report_first():
    make_worker("training@laptop")
    Worker.objects.update(last_seen=Now() - timedelta(days=8))
    checked_ago(8 * 86_400, began=9 * 86_400)

    lease.reap(grace=SHORT)
    assert Worker.objects.exists()

    checked_ago(15, began=15)
    lease.reap(grace=SHORT)
    assert not Worker.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_four_reapers_at_once_count_one_loss(launch):
    runs = [launch(name=f"run {n}") for n in range(5)]
    for run in runs:
        claim(run)
        expire(run)
    start = threading.Barrier(4)

    def reap() -> None:
        try:
            start.wait()
            lease.reap(grace=AT_ONCE)
        finally:
            connection.close()

    threads = [threading.Thread(target=reap) for _ in range(4)]
    run_threads(threads)

    assert list(Run.objects.values_list("num_losses", flat=True)) == [1] * 5
