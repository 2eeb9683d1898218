"""Which run a free worker takes."""

import threading

import pytest
from django.db import connection

from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queue.changes import hold_run, release_run, set_priority
from dashboard.runs.queue.hosts import Host
from dashboard.supervision.lease import Claim, claim_next, claim_run, startable
from tests.dashboard.supervision.factories import Launcher
from tests.environment import run_threads

HOST = Host(name="worker-1")


def claims(host: Host = HOST) -> list[str]:
    """The names of the runs that it takes, one after the other."""
    taken = []
    while claim := claim_next(host, sees=lambda run: True):
        taken.append(Run.objects.get(id=claim.run_id).name)
    return taken


def test_priority_goes_before_age(launch, alice):
    low, _, high = (launch(name=name) for name in ("low", "normal", "high"))
    set_priority(run=low, user=alice, priority=Priority.LOW)
    set_priority(run=high, user=alice, priority=Priority.HIGH)

    assert claims() == ["high", "normal", "low"]


def test_a_run_on_hold_is_left_until_it_is_released(launch, alice):
    held, _ = launch(name="held"), launch(name="other")
    hold_run(run=held, user=alice)

    assert startable().count() == 1
    assert claims() == ["other"]
    assert claim_run(held.id, "worker-2") is None

    release_run(run=held, user=alice)
    assert claims() == ["held"]


def test_teams_take_turns(launch, alice):
    for name in ("a1", "a2", "a3"):
        launch(name=name)
    other = Team.objects.create(slug="beta", name="Beta")
    theirs = Launcher(other, alice)
    for name in ("b1", "b2"):
        theirs(name=name)

    assert claims() == ["a1", "b1", "a2", "b2", "a3"]


def test_a_worker_skips_runs_that_need_more_gpus(launch):
    big = {"model": {"path": "/nowhere", "device": "cuda"}}
    launch(name="big", **big)
    launch(name="small")

    assert claims(Host(name="cpu-only")) == ["small"]
    assert claims(Host(name="with-gpu", num_gpus=1)) == ["big"]


@pytest.mark.django_db(transaction=True)
def test_two_workers_racing_share_the_runs_and_none_twice(launch):
    names = [f"run-{number}" for number in range(6)]
    for name in names:
        launch(name=name)
    won: list[Claim] = []
    start = threading.Barrier(2)

    def contend(worker: str) -> None:
        try:
            start.wait()
            while claim := claim_next(Host(name=worker), sees=lambda run: True):
                won.append(claim)
        finally:
            connection.close()

    threads = [threading.Thread(target=contend, args=(f"w{n}",)) for n in range(2)]
    run_threads(threads)

    assert sorted(claim.run_id for claim in won) == sorted(
        Run.objects.values_list("id", flat=True)
    )
    assert not Run.objects.filter(state=RunState.QUEUED).exists()
    assert set(Run.objects.values_list("attempt", flat=True)) == {1}
