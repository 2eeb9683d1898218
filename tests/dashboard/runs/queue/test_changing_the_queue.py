import pytest

from dashboard.accounts.models import AuditEntry
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queue.changes import (
    hold_run,
    release_run,
    set_priority,
)
from tests.dashboard.runs.stories import Story, queue_run


@pytest.fixture(scope="module")
def runs(shared_team) -> list[Run]:
    return [queue_run(shared_team) for _ in range(4)]


def test_a_priority_changes_once_and_is_audited(runs, alice):
    assert set_priority(run=runs[0], user=alice, priority=Priority.LOW)
    assert not set_priority(run=runs[0], user=alice, priority=Priority.LOW)

    entry = AuditEntry.objects.get(verb="run.priority_changed")
    assert entry.detail == {"before": "normal", "priority": "low"}


def test_a_run_that_ended_has_no_priority_to_change(runs, alice):
    Run.objects.filter(id=runs[0].id).update(state=RunState.STOPPED)

    assert not set_priority(run=runs[0], user=alice, priority=Priority.HIGH)


def test_a_hold_and_a_release_are_audited_and_published(runs, alice):
    before = runs[0].seq

    assert hold_run(run=runs[0], user=alice)
    assert not hold_run(run=runs[0], user=alice)
    assert release_run(run=runs[0], user=alice)
    assert not release_run(run=runs[0], user=alice)

    runs[0].refresh_from_db()
    assert runs[0].seq == before + 2, "open pages receive it"
    verbs = AuditEntry.objects.filter(object_id=runs[0].id).values_list("verb")
    assert {"run.held", "run.released"} <= {verb for (verb,) in verbs}


def test_only_a_queued_run_is_put_on_hold(runs, alice):
    Story(runs[0])

    assert not hold_run(run=runs[0], user=alice)
