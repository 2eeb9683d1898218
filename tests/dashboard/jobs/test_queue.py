"""Jobs take turns by team, each is open once, and a page says why its job waits."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from dashboard.accounts.models import Team
from dashboard.datasets import row_filters
from dashboard.datasets.models import DatasetVersion, VersionLeak
from dashboard.datasets.row import Row
from dashboard.jobs import kinds, queue, runner
from dashboard.jobs.kinds import Context, Kind, all_kinds, all_purges, register
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import (
    cancel,
    claim_next,
    enqueue,
    enqueue_few,
    purge,
    queue_position,
    reap,
    should_enqueue,
    waiting_reason,
)
from dashboard.jobs.runner import run_pending
from dashboard.jobs.tasks import clean
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import WORKER, do, do_all, take, waiting

NAME, BESIDE = "test.count", "test.other"


@pytest.fixture(autouse=True)
def done(monkeypatch) -> list[int]:
    """The targets of jobs of two kinds that only note them, in order."""
    noted: list[int] = []
    monkeypatch.setattr(kinds, "_kinds", {kind.name: kind for kind in all_kinds()})
    for name in (NAME, BESIDE):
        register(
            Kind(
                name=name,
                run=lambda context: noted.append(context.job.target_id),
                noun="count",
                lane="test",
            )
        )
    return noted


def run_with(monkeypatch: pytest.MonkeyPatch, run: Callable[[Context], None]) -> None:
    register(Kind(name=NAME, run=run, noun="count", lane="test"))


@pytest.fixture
def late(db) -> Team:
    return Team.objects.create(slug="late", name="Late")


def ask(team: Team, *targets: int) -> None:
    for target in targets:
        enqueue(NAME, target, team_id=team.pk)


def test_a_team_with_many_jobs_waits_for_others(team, late, done):
    ask(team, 0, 1, 2, 3)
    ask(late, 10, 11)

    do_all()

    assert done == [0, 10, 1, 11, 2, 3]


def test_kinds_of_a_lane_take_turns_together(team, late, done):
    ask(team, 1)
    do_all()
    enqueue(BESIDE, 2, team_id=team.pk)
    ask(late, 3)

    do_all()

    assert done == [1, 3, 2]


def test_a_target_has_one_open_job_of_a_kind(team):
    first = enqueue(NAME, 1, team_id=team.pk)
    assert enqueue(NAME, 1, team_id=team.pk) == first
    claim = take()
    assert enqueue(NAME, 1, team_id=team.pk) == first

    do(claim)

    assert enqueue(NAME, 1, team_id=team.pk) != first


def test_waiting_jobs_of_a_page_are_limited(team, late, monkeypatch):
    monkeypatch.setattr(queue, "MAX_WAITING", 2)

    requested = [enqueue_few(NAME, target, team_id=team.pk) for target in (1, 2, 3, 1)]

    assert requested[2] is None
    assert requested[3] == requested[0]
    assert enqueue_few(NAME, 9, team_id=late.pk) is not None


def test_its_place_is_its_teams_own(team, late):
    ask(team, 1, 2)
    ask(late, 3)

    places = [queue_position(job) for job in Job.objects.order_by("pk")]

    assert places == [1, 2, 1]


def test_a_page_shows_why_a_job_is_queued(team):
    ask(team, 1, 2)
    waits = Job.objects.get(target_id=2)
    assert waiting_reason(waits) == ""
    Job.objects.update(created_at=Now() - timedelta(seconds=9))
    assert "No worker" in waiting_reason(waits)

    claim = take()

    assert "Position 1" in waiting_reason(waits)
    do(claim)
    assert waiting_reason(Job.objects.get(target_id=1)) == ""


def test_only_one_of_two_claims_gets_the_job(team):
    ask(team, 1)

    first = take(worker="a")

    assert claim_next([NAME], "b") is None
    assert (first.attempt, first.held().get().worker) == (1, "a")


def test_a_queued_job_is_cancelled_at_once(team, done):
    ask(team, 1)

    assert cancel(Job.objects.get())

    assert Job.objects.get().state == JobState.CANCELLED
    assert not cancel(Job.objects.get())
    do_all()
    assert done == []


def lose(seconds: int = 1) -> None:
    Job.objects.filter(state=JobState.RUNNING).update(
        lease_until=Now() - timedelta(seconds=seconds)
    )


def test_a_lost_job_is_queued_again_and_fails_the_third_time(team):
    ask(team, 1)
    for expected in (JobState.QUEUED, JobState.QUEUED, JobState.FAILED):
        take()
        reap()
        assert Job.objects.get().state == JobState.RUNNING, "its lease is not over"
        lose()
        reap()
        assert Job.objects.get().state == expected

    assert "3 times" in Job.objects.get().error


def test_a_lost_job_that_was_to_be_cancelled_is(team):
    ask(team, 1)
    take()
    cancel(Job.objects.get())
    lose()

    reap()

    assert Job.objects.get().state == JobState.CANCELLED


def test_an_unknown_kind_is_ignored(team):
    Job.objects.create(kind="of.another.version", target_id=1, team=team)

    assert do_all() == []
    reap()

    assert waiting() == [("of.another.version", 1)]


def test_ended_jobs_are_forgotten_after_a_day(team):
    ask(team, 1, 2)
    do_all()
    ask(team, 3)
    Job.objects.filter(target_id=1).update(finished_at=Now() - timedelta(days=2))

    purge()

    assert set(Job.objects.values_list("target_id", flat=True)) == {2, 3}


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_one_of_a_lane_at_a_time(team, done, monkeypatch):
    ask(team, 1, 2, 3)
    beside: list[list[int]] = []

    def in_another_slot(worker: str) -> None:
        num_before = len(done)
        run_pending("default", worker, is_shutting_down=bool)
        beside.append(done[num_before:])
        connection.close()

    def count(context: Context) -> None:
        if context.job.target_id == 1:
            for worker in (WORKER, "default@there"):
                slot = threading.Thread(target=in_another_slot, args=(worker,))
                slot.start()
                slot.join()
        done.append(context.job.target_id)

    run_with(monkeypatch, count)

    run_pending("default", WORKER, is_shutting_down=bool)

    assert beside == [[], [2, 3]]
    ask(team, 4)
    run_pending("default", WORKER, is_shutting_down=bool)
    assert done[-1] == 4, "the lock was let go of"


@pytest.fixture
def versions(team, monkeypatch) -> list[DatasetVersion]:
    """However few their rows, a worker looks through them."""
    monkeypatch.setattr(row_filters, "MAX_ROWS_OF_PAGE", 0)
    return [
        store_dataset(team, [Row(prompt=f"{n} plus 4?")], name=f"Sums {n}")
        for n in range(4)
    ]


def test_a_page_that_found_no_place_gets_one_later(bob_client, versions, monkeypatch):
    monkeypatch.setattr(queue, "MAX_WAITING", 1)
    first, *others = versions

    def look(other: DatasetVersion) -> None:
        address = f"/alpha/datasets/{first.dataset_id}/leaks"
        assert bob_client.get(address, {"against": other.pk}).status_code == 200

    for other in others:
        look(other)
    assert len(waiting()) == 1
    for other in others[1:]:
        do_all()
        look(other)
    do_all()

    assert [found.is_done for found in VersionLeak.objects.all()] == [True] * 3


def test_a_failing_purge_does_not_stop_others(monkeypatch, caplog, db):
    called: list[int] = []

    def fail() -> None:
        raise RuntimeError("a fault")

    assert all_purges()
    monkeypatch.setattr(kinds, "_purges", [fail, lambda: called.append(1)])

    clean()

    assert called == [1]
    assert "fail failed" in caplog.text


def test_a_job_from_before_the_databases_start_has_time_to_report_again(
    team, monkeypatch
):
    ask(team, 1, 2)
    before, since = take(), take()
    before.held().update(served_at="2000-01-01T00:00Z")
    monkeypatch.setattr(queue, "GRACE", timedelta(days=9_000))
    lose()

    reap()

    assert before.held().exists()
    assert not since.held().exists()


def test_a_failed_job_is_retried_later(team, monkeypatch):
    def fail(_: Context) -> None:
        raise ValueError("no")

    run_with(monkeypatch, fail)
    ask(team, 1)
    (failed,) = do_all()
    assert not should_enqueue(failed)

    Job.objects.update(finished_at=Now() - timedelta(minutes=3))

    assert should_enqueue(failed)


@pytest.mark.django_db(transaction=True)
def test_a_slowly_cancelled_job_keeps_its_lease(team, monkeypatch):
    monkeypatch.setattr(runner, "HEARTBEAT_SECONDS", 0.02)
    reported: list[int] = []

    def end_slowly(context: Context) -> None:
        context.on_interrupt = lambda: reported.append(1)
        cancel(context.job)
        while not reported:
            time.sleep(0.01)
        context.held().update(lease_until=Now())
        while not context.held().filter(lease_until__gt=Now()).exists():
            time.sleep(0.01)
        context.check()

    run_with(monkeypatch, end_slowly)
    ask(team, 1)

    run_pending("default", WORKER, is_shutting_down=bool)

    assert (Job.objects.get().state, reported) == (JobState.CANCELLED, [1])
