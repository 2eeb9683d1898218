import pytest

from dashboard.accounts.models import AuditEntry
from dashboard.runs.control import request_stop
from dashboard.runs.models import ENDED, Run, RunState
from dashboard.runs.state import TRANSITIONS, transition
from tests.dashboard.supervision.factories import Launcher

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def run(shared_team, shared_alice) -> Run:
    return Launcher(shared_team, shared_alice)()


def test_every_state_has_its_transitions():
    assert set(TRANSITIONS) == set(RunState)


def test_every_state_can_reach_an_end():
    for state in set(RunState) - set(ENDED):
        reached, waiting = {state}, [state]
        while waiting:
            new = TRANSITIONS[waiting.pop()] - reached
            reached |= new
            waiting += new
        assert reached & set(ENDED), state


def test_an_ended_run_can_only_be_extended():
    ways = {state: TRANSITIONS[RunState(state)] for state in ENDED}

    assert ways == {
        RunState.FINISHED: {RunState.QUEUED},
        RunState.STOPPED: {RunState.QUEUED},
        RunState.FAILED: frozenset(),
    }


def test_a_lost_run_does_not_restart_by_itself(run):
    Run.objects.filter(id=run.id).update(state=RunState.LOST)

    assert not transition(run.id, sources=[RunState.LOST], target=RunState.RUNNING)


def test_a_launched_run_is_queued_and_audited(run, alice):
    entry = AuditEntry.objects.get(verb="run.launched")

    assert run.state == RunState.QUEUED
    assert (entry.actor, entry.object_id) == (alice, run.id)


def test_a_run_is_moved_once(run):
    move = {"sources": [RunState.QUEUED], "target": RunState.STOPPED}

    assert transition(run.id, **move)
    assert not transition(run.id, **move)
    assert AuditEntry.objects.filter(verb="run.stopped").count() == 1


def test_a_change_of_state_takes_a_number_of_the_stream(run):
    transition(run.id, sources=[RunState.QUEUED], target=RunState.FAILED)

    assert Run.objects.get(id=run.id).seq == run.seq + 1


def test_an_unknown_transition_is_an_assertion_error(run):
    with pytest.raises(AssertionError, match="No transition"):
        transition(run.id, sources=[RunState.QUEUED], target=RunState.FINISHED)


def test_a_queued_run_is_stopped_at_once(run, alice):
    assert request_stop(run=run, user=alice)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert run.finished_at is not None
    assert AuditEntry.objects.get(verb="run.stop_requested").actor == alice


def test_stopping_an_ended_run_changes_nothing(run, alice):
    request_stop(run=run, user=alice)

    assert not request_stop(run=run, user=alice)
