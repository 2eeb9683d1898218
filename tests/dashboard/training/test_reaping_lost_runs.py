from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from dashboard.runs.models import Run, RunState
from dashboard.training import reaper
from dashboard.training.lease import claim_run
from tests.dashboard.training.factories import Launcher

AT_ONCE = timedelta(0)
pytestmark = pytest.mark.django_db


def claim(run: Run) -> None:
    Run.objects.filter(id=run.id).update(not_before=None)
    assert claim_run(run.id, "worker-1") is not None


def expire(run: Run) -> None:
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))


def rest_seconds(run: Run) -> float:
    rest = Run.objects.annotate(rest=F("not_before") - Now()).get(id=run.id).rest
    return float(rest.total_seconds())


def test_a_run_with_a_lease_is_left_alone(run: Run) -> None:
    claim(run)

    assert reaper.reap(grace=AT_ONCE) == []


def test_a_lost_run_is_queued_again_after_growing_rests(run: Run) -> None:
    rests = []
    for _ in range(3):
        claim(run)
        expire(run)
        assert reaper.reap(grace=AT_ONCE) == [run.id]
        rests.append(rest_seconds(run))

    run.refresh_from_db()
    assert rests == pytest.approx([10, 30, 90], abs=1)
    assert (run.state, run.attempt, run.lease_until) == (RunState.QUEUED, 3, None)
    assert "its worker worker-1 was not heard of" in run.epochs.latest("number").outcome


def test_a_fourth_loss_in_a_row_is_the_end(run: Run) -> None:
    for _ in range(4):
        claim(run)
        expire(run)
        reaper.reap(grace=AT_ONCE)

    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "lost 4 times in a row" in run.fail_reason
    assert run.finished_at is not None


def test_a_run_that_was_being_stopped_is_stopped(run: Run) -> None:
    claim(run)
    Run.objects.filter(id=run.id).update(state=RunState.STOPPING)
    expire(run)

    reaper.reap(grace=AT_ONCE)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED


def test_reaping_again_changes_nothing(run: Run) -> None:
    claim(run)
    expire(run)
    reaper.reap(grace=AT_ONCE)
    before = Run.objects.filter(id=run.id).values().get()

    assert reaper.reap(grace=AT_ONCE) == []
    assert Run.objects.filter(id=run.id).values().get() == before


def test_after_a_database_outage_supervisors_get_time_to_report(run: Run) -> None:
    claim(run)
    expire(run)

    assert reaper.reap(grace=timedelta(days=1)) == []


@pytest.mark.django_db(transaction=True)
def test_four_reapers_at_once_count_one_loss(launch: Launcher) -> None:
    runs = [launch(name=f"run {n}") for n in range(5)]
    for run in runs:
        claim(run)
        expire(run)
    start = threading.Barrier(4)

    def reap() -> None:
        try:
            start.wait()
            reaper.reap(grace=AT_ONCE)
        finally:
            connection.close()

    threads = [threading.Thread(target=reap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(Run.objects.values_list("attempt", flat=True)) == [1] * 5
