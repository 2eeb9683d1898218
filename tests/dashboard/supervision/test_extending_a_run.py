"""More steps for a run, and other intervals: requested in any state."""

import json
import shutil
from functools import partial
from typing import Any

import pytest
from django.db.models.functions import Now

from dashboard.accounts.models import AuditEntry, User
from dashboard.project.errors import UserError
from dashboard.runs.changes import change_run, extend_run
from dashboard.runs.checkpoints.retention import delete
from dashboard.runs.control import request_stop
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import transition
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.test_forking_a_run import keep
from tests.dashboard.supervision.test_supervising_a_run import after_steps, live
from trainer.config import RunConfig
from trainer.events import SettingsChanged


def changes_of(run: Run, attempt: int) -> list[dict[str, Any]]:
    path = run_directory(run.id).attempt(attempt).changes
    listed: list[dict[str, Any]] = json.loads(path.read_text())["changes"]
    return listed


def end(run: Run, state: RunState) -> None:
    Run.objects.filter(id=run.id).update(state=state, finished_at=run.created_at)


def first_steps(run: Run) -> int:
    config = json.loads(run_directory(run.id).config.read_text())
    steps: int = config["optim"]["num_steps"]
    return steps


def test_an_ended_run_continues_from_its_last_checkpoint_as_the_same_run(run, alice):
    live(run, "finish")
    keep(run, 2)
    end(run, RunState.FINISHED)

    extend_run(run=run, user=alice, num_steps=30)

    run.refresh_from_db()
    assert (run.state, run.num_steps, run.finished_at) == (RunState.QUEUED, 30, None)
    entry = AuditEntry.objects.get(verb="run.extended")
    assert (entry.actor, entry.detail["num_steps"]) == (alice, 30)
    live(run, "be_killed")
    assert run.attempts.get(number=2).from_step == 2
    assert first_steps(run) == 10  # its trainer gets the rest
    requested = {"number": 1, "after_step": None, "settings": {"optim.num_steps": 30}}
    assert changes_of(run, 2) == [requested]


def test_a_stopped_run_continues_to_its_number_of_steps(run, alice):
    keep(run, 4)
    end(run, RunState.STOPPED)

    extend_run(run=run, user=alice, num_steps=10)

    run.refresh_from_db()
    assert (run.state, run.num_steps) == (RunState.QUEUED, 10)
    assert not run.changes.exists()


def test_a_run_that_cannot_be_extended_is_refused(run, alice):
    keep(run, 4)
    for state, num_steps, code in (
        (RunState.FAILED, 30, "not_extendable"),
        (RunState.STOPPING, 30, "not_extendable"),
        (RunState.FINISHED, 4, "before_checkpoint"),
        (RunState.QUEUED, 10, "not_longer"),
        (RunState.PAUSED, 9, "not_longer"),
    ):
        Run.objects.filter(id=run.id).update(state=state, lease_until=run.created_at)

        with pytest.raises(UserError) as refused:
            extend_run(run=run, user=alice, num_steps=num_steps)

        assert refused.value.code == f"runs.{code}"
        run.refresh_from_db()
        assert (run.state, run.num_steps) == (state, 10)


def test_an_ended_run_without_a_checkpoint_cannot_be_extended(run, alice):
    request_stop(run=run, user=alice)

    with pytest.raises(ValueError, match="no checkpoint"):
        extend_run(run=run, user=alice, num_steps=30)


def test_a_run_without_checkpoint_files_cannot_be_extended(run, alice):
    for step in (2, 4, 6):
        keep(run, step)
    shutil.rmtree(run_directory(run.id).checkpoints / "step-000002-attempt-1")
    end(run, RunState.FINISHED)
    extend = partial(extend_run, run=run, user=alice)

    delete_by_hand(run, 6, alice)
    with pytest.raises(ValueError, match="step 4,"):
        extend(num_steps=4)
    delete_by_hand(run, 4, alice)
    with pytest.raises(ValueError, match="no checkpoint"):
        extend(num_steps=30)

    run.refresh_from_db()
    assert run.state == RunState.FINISHED


def test_recorded_checkpoints_count_if_the_files_are_not_readable(run, alice):
    for step in (2, 4):
        keep(run, step)
    shutil.rmtree(run_directory(run.id).path)
    end(run, RunState.FINISHED)

    run.checkpoints.filter(step=4).update(deleted_at=Now())
    with pytest.raises(ValueError, match="step 2,"):
        extend_run(run=run, user=alice, num_steps=2)
    run = Run.objects.get(id=run.id)
    run.checkpoints.update(deleted_at=Now())
    with pytest.raises(ValueError, match="no checkpoint"):
        extend_run(run=run, user=alice, num_steps=30)


def delete_by_hand(run: Run, step: int, user: User) -> None:
    delete(checkpoint=run.checkpoints.get(step=step), user=user)


def test_a_second_extension_to_the_same_step_is_refused(run, alice):
    keep(run, 4)
    end(run, RunState.FINISHED)
    extend_run(run=run, user=alice, num_steps=30)

    with pytest.raises(UserError) as refused:
        extend_run(run=run, user=alice, num_steps=30)
    assert refused.value.code == "runs.not_longer"

    assert AuditEntry.objects.filter(verb="run.extended").count() == 1


def test_nothing_but_an_extension_takes_an_ended_run_up_again(run):
    end(run, RunState.FINISHED)

    with pytest.raises(AssertionError):
        transition(run.id, sources=[RunState.FINISHED], target=RunState.QUEUED)


def test_a_running_trainer_gets_changed_settings(run, alice):
    def act() -> None:
        extend_run(run=run, user=alice, num_steps=20)
        change_run(run=run, user=alice, settings={"checkpoint.every_steps": 3})

    def ask() -> bool:
        requested()
        stop()
        return False

    requested = after_steps(1, run, act)
    stop = after_steps(8, run, lambda: request_stop(run=run, user=alice))
    live(run, "train_until_stopped", ask)

    assert [c["settings"] for c in changes_of(run, 1)] == [
        {"optim.num_steps": 20},
        {"checkpoint.every_steps": 3},
    ]
    run.refresh_from_db()
    assert run.num_steps == 20
    assert run.config["checkpoint"]["every_steps"] == 3


def test_an_applied_change_is_repeated_at_its_step(run, alice):
    change = change_run(run=run, user=alice, settings={"checkpoint.keep_last": 5})
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    log = LogBuilder().started().stepped(1)
    log.add(SettingsChanged, step=1, number=1, settings=change.after)
    ingest(claim, log.events)
    Run.objects.filter(id=run.id).update(state=RunState.QUEUED, lease_until=None)
    keep(run, 1)

    live(run, "be_killed")

    change.refresh_from_db()
    assert change.applied_step == 1
    assert changes_of(run, 2)[0]["after_step"] == 1


def test_a_change_applied_in_unstored_steps_is_repeated(run, alice):
    change = change_run(run=run, user=alice, settings={"checkpoint.keep_last": 5})
    assert claim_run(run.id, "worker-1")
    keep(run, 1)
    log = LogBuilder().started().stepped(1).stepped(2)
    log.add(SettingsChanged, step=2, number=1, settings=change.after)
    log.write(run_directory(run.id).attempt(1).events)
    Run.objects.filter(id=run.id).update(state=RunState.QUEUED, lease_until=None)

    live(run, "be_killed")

    assert changes_of(run, 2)[0]["after_step"] == 2


def test_an_extension_that_comes_too_late_for_its_trainer_is_the_next_ones(run, alice):
    act = after_steps(3, run, lambda: extend_run(run=run, user=alice, num_steps=20))

    ended = live(run, "finish", act)

    assert (ended.state, ended.num_losses) == (RunState.QUEUED, 0)


def test_a_run_that_is_stopped_short_of_its_extension_has_not_finished(run, alice):
    def extend_and_stop() -> None:
        extend_run(run=run, user=alice, num_steps=20)
        request_stop(run=run, user=alice)

    ended = live(run, "finish", after_steps(3, run, extend_and_stop))

    assert (ended.state, ended.last_step) == (RunState.STOPPED, 3)


def test_a_run_that_applied_its_extension_finishes(run, alice):
    extend_run(run=run, user=alice, num_steps=20)
    run.changes.update(applied_step=2)

    assert live(run, "finish").state == RunState.FINISHED


def test_the_first_settings_are_found_through_all_changes(launch):
    phases = [
        {"name": "one", "num_steps": 4, "changes": {}},
        {"name": "two", "num_steps": 6, "changes": {}},
    ]
    run = launch(phases=phases)
    first = RunConfig.model_validate(run.config)
    for num_steps in (20, 30):
        extend_run(run=run, user=launch.user, num_steps=num_steps)
    change_run(run=run, user=launch.user, settings={"evaluation.every_steps": 7})
    run.refresh_from_db()

    live(run, "be_killed")

    written = json.loads(run_directory(run.id).config.read_text())
    assert RunConfig.model_validate(written).optim == first.optim
    assert RunConfig.model_validate(written).phases == first.phases
    assert RunConfig.model_validate(run.config).phases[-1].num_steps == 26


def test_an_empty_invalid_or_late_change_is_refused(run, alice):
    change = partial(change_run, run=run, user=alice)

    with pytest.raises(UserError) as refused:
        change(settings={"checkpoint.keep_last": 2})
    assert refused.value.code == "runs.unchanged"
    with pytest.raises(ValueError, match="keep_last"):
        change(settings={"checkpoint.keep_last": 0})
    request_stop(run=run, user=alice)
    with pytest.raises(ValueError, match="stopped"):
        change(settings={"checkpoint.keep_last": 5})

    assert not run.changes.exists()
