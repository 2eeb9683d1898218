from __future__ import annotations

import pytest

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queue.changes import (
    Move,
    hold_run,
    move_run,
    release_run,
    set_priority,
)
from dashboard.runs.queue.order import list_startable
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(team: Team) -> list[Run]:
    return [queue_run(team) for _ in range(4)]


def order(runs: list[Run]) -> list[int]:
    """Which of the runs is taken first, second …"""
    ids = [run.id for run in runs]
    return [ids.index(one.run_id) for one in list_startable()]


@pytest.mark.parametrize(
    ("where", "after"),
    [("up", [0, 2, 1, 3]), ("down", [0, 1, 3, 2]), ("front", [2, 0, 1, 3])],
)
def test_a_run_is_moved(
    runs: list[Run], alice: User, where: Move, after: list[int]
) -> None:
    assert move_run(run=runs[2], user=alice, where=where)

    assert order(runs) == after
    entry = AuditEntry.objects.get(verb="run.moved")
    assert (entry.object_id, entry.detail["where"]) == (runs[2].id, where)


def test_moves_add_up(runs: list[Run], alice: User) -> None:
    for at, where in ((3, "front"), (0, "down"), (3, "down"), (2, "up")):
        assert move_run(run=runs[at], user=alice, where=where)  # type: ignore[arg-type]

    assert order(runs) == [1, 3, 2, 0]


def test_moves_past_the_ends_change_nothing(runs: list[Run], alice: User) -> None:
    assert not move_run(run=runs[0], user=alice, where="up")
    assert not move_run(run=runs[0], user=alice, where="front")
    assert not move_run(run=runs[3], user=alice, where="down")
    assert not AuditEntry.objects.filter(verb="run.moved").exists()


def test_a_run_taken_by_a_worker_is_not_moved(runs: list[Run], alice: User) -> None:
    Story(runs[3])

    assert not move_run(run=runs[3], user=alice, where="front")


def test_moves_do_not_change_other_teams_positions(
    runs: list[Run], alice: User
) -> None:
    other = Team.objects.create(slug="beta", name="Beta")
    theirs = queue_run(other)
    later = queue_run(runs[0].team)
    before = [one.run_id for one in list_startable()].index(theirs.id)

    move_run(run=later, user=alice, where="front")

    assert [one.run_id for one in list_startable()].index(theirs.id) == before


def test_a_move_keeps_to_its_priority(runs: list[Run], alice: User) -> None:
    set_priority(run=runs[1], user=alice, priority=Priority.HIGH)

    assert move_run(run=runs[3], user=alice, where="front")

    assert order(runs) == [1, 3, 0, 2]


def test_a_priority_changes_once_and_is_audited(runs: list[Run], alice: User) -> None:
    assert set_priority(run=runs[0], user=alice, priority=Priority.LOW)
    assert not set_priority(run=runs[0], user=alice, priority=Priority.LOW)

    entry = AuditEntry.objects.get(verb="run.priority_changed")
    assert entry.detail == {"before": "normal", "priority": "low"}


def test_a_run_that_ended_has_no_priority_to_change(
    runs: list[Run], alice: User
) -> None:
    Run.objects.filter(id=runs[0].id).update(state=RunState.STOPPED)

    assert not set_priority(run=runs[0], user=alice, priority=Priority.HIGH)


def test_a_hold_and_a_release_are_audited_and_published(
    runs: list[Run], alice: User
) -> None:
    before = runs[0].seq

    assert hold_run(run=runs[0], user=alice)
    assert not hold_run(run=runs[0], user=alice)
    assert release_run(run=runs[0], user=alice)
    assert not release_run(run=runs[0], user=alice)

    runs[0].refresh_from_db()
    assert runs[0].seq == before + 2, "open pages receive it"
    verbs = AuditEntry.objects.filter(object_id=runs[0].id).values_list("verb")
    assert {"run.held", "run.released"} <= {verb for (verb,) in verbs}


def test_only_a_queued_run_is_put_on_hold(runs: list[Run], alice: User) -> None:
    Story(runs[0])

    assert not hold_run(run=runs[0], user=alice)
