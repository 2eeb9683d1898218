"""An external trainer opens a run and continues it in another attempt."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, transaction

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.project.errors import UserError
from dashboard.runs.control import request_pause, request_stop
from dashboard.runs.models import Run, RunState, Step
from dashboard.supervision.external_events import RunEnded
from dashboard.supervision.external_runs import Opening, open_attempt, open_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send

OPENING = Opening(
    key=UUID(int=7),
    name="theirs",
    tool="TRL",
    version="1.16.0",
    model="Qwen3-0.6B",
    host="node-3",
    num_steps=20,
    settings={"learning_rate": 1e-6, "beta": float("nan"), "fsdp": {"offload": False}},
    rules={"accuracy": 1.0, "format": 0.2},
    right_from=1.0,
    tags=["sweep 3"],
)


def opened(team: Team, user: User, **changes: Any) -> Run:
    return open_run(
        OPENING.model_copy(update={"key": uuid4(), **changes}), team=team, user=user
    )[0]


def test_a_run_is_opened_with_the_trainers_fields(team, alice):
    run, is_new = open_run(OPENING, team=team, user=alice)

    run.refresh_from_db()
    assert is_new
    assert (run.state, run.attempt, run.num_steps) == (RunState.RUNNING, 1, 20)
    assert (run.name, run.model_label, run.imported_from) == (
        "theirs",
        "Qwen3-0.6B",
        "TRL",
    )
    assert run.is_external
    assert run.config["settings"] == {
        "learning_rate": 1e-6,
        "beta": None,
        "fsdp": {"offload": False},
    }
    rules = run.config["reward"]["recipe"]["rules"]
    assert rules == [
        {"name": "accuracy", "weight": 1.0},
        {"name": "format", "weight": 0.2},
    ]
    assert run.attempts.get().worker == "node-3"
    assert AuditEntry.objects.filter(verb="run.opened", object_id=run.pk).exists()


def test_the_same_key_opens_the_same_run(team, alice):
    first, _ = open_run(OPENING, team=team, user=alice)

    again, is_new = open_run(OPENING, team=team, user=alice)

    assert (again.pk, is_new) == (first.pk, False)


def test_a_key_is_a_teams_own(team, alice, charlie):
    run, _ = open_run(OPENING, team=team, user=alice)
    theirs = Team.objects.get(slug="other")

    other, is_new = open_run(OPENING, team=theirs, user=charlie)

    assert is_new
    assert other.pk != run.pk


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "name"),
    ({"tool": "x" * 41}, "tool"),
    ({"num_steps": 0}, "num_steps"),
    ({"rules": {"a": float("inf")}}, "weight of 'a'"),
    ({"right_from": float("nan")}, "right_from"),
    ({"settings": {"a": "x" * 70_000}}, "settings.*65,536"),
    ({"rules": {str(n): 1.0 for n in range(65)}}, "rules.*64"),
    ({"tags": ["a\nb\x00"]}, "tag"),
]


def test_an_invalid_field_is_named(team, alice):
    for changes, fragment in REFUSED:
        with pytest.raises(ValueError, match=fragment):
            opened(team, alice, **changes)
    assert not Run.objects.exists()


def test_another_attempt_supersedes_later_steps(team, alice):
    run = opened(team, alice)
    send(run, LogBuilder().stepped(1).stepped(2).stepped(3))

    attempt = open_attempt(run, from_step=2, host="node-4", user=alice)

    run.refresh_from_db()
    assert (attempt, run.attempt, run.last_step) == (2, 2, 2)
    current = Step.objects.filter(run=run, superseded_by=None)
    assert sorted(current.values_list("step", flat=True)) == [1, 2]
    assert "step 2" in run.attempts.get(number=1).outcome
    assert run.attempts.get(number=2).from_step == 2


def test_a_failed_run_is_trained_on(team, alice):
    run = opened(team, alice)
    log = LogBuilder().stepped(1).failed("Out of memory.")
    assert send(run, log).state == RunState.FAILED

    open_attempt(run, from_step=1, user=alice)

    run.refresh_from_db()
    assert (run.state, run.fail_reason, run.finished_at) == ("running", "", None)


def test_an_attempt_cannot_start_after_an_unstored_step(team, alice):
    run = opened(team, alice)

    with pytest.raises(UserError) as raised:
        open_attempt(run, from_step=1, user=alice)
    assert raised.value.code == "external_runs.bad_from_step"


def test_a_run_in_the_trash_is_not_trained_on(team, alice):
    run = opened(team, alice)
    send(run, LogBuilder().stepped(1).finished(1))
    Run.objects.filter(pk=run.pk).update(trashed_at=run.created_at)

    with pytest.raises(RunEnded, match="in the trash"):
        open_attempt(run, from_step=1, user=alice)


def test_it_is_closed_at_once_and_never_paused(team, alice):
    run = opened(team, alice)

    assert not request_pause(run=run, user=alice)
    assert request_stop(run=run, user=alice)

    run.refresh_from_db()
    assert run.state == RunState.STOPPED
    assert "alice" in run.stop_reason


def test_the_database_keeps_it_from_the_queue(team, alice):
    run = opened(team, alice)

    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(pk=run.pk).update(state=RunState.QUEUED)
