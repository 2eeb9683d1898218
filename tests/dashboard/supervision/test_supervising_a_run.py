import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from dashboard.accounts.models import AuditEntry
from dashboard.runs.control import request_stop
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import RunDirectory, run_directory
from dashboard.supervision import process, startup
from dashboard.supervision.database_retry import DatabaseRetry
from dashboard.supervision.lease import claim_run
from dashboard.supervision.process import write_snapshot
from dashboard.supervision.supervisor import Timing, supervise
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import RunFailed, RunPaused, RunStopped, ScoreFault

SCRIPT = Path(__file__).parent / "scripted_trainer.py"
FAST = Timing(poll_seconds=0.01, check_seconds=0.05, grace_seconds=0.5)


def script(behaviour: str) -> Callable[..., list[str]]:
    def command(
        directory: RunDirectory, *, attempt: int, resume_from: Path | None
    ) -> list[str]:
        return scripted(behaviour, directory.attempt(attempt).path, attempt)

    return command


def scripted(behaviour: str, out: Path, attempt: int) -> list[str]:
    """The trainer's command line; without site packages it starts at once."""
    python = [sys.executable, "-I", "-S", str(SCRIPT)]
    return [*python, behaviour, str(out), str(attempt), example_events()]


@cache
def example_events() -> str:
    """One event of each type, which the script repeats with other lines and steps."""
    log = LogBuilder().started().stepped(1).saved(1).finished(1)
    log.add(RunFailed, step=0, error="No tokenizer.", details="…")
    log.add(RunStopped, step=1, checkpoint="x")
    log.add(
        RunPaused,
        step=2,
        reason="100% of the scores of step 3 failed.",
        share=1.0,
        limit=0.2,
        faults=[ScoreFault(rule="judge", error="It is\0away.", count=16)],
        checkpoint="step-000002-attempt-1",
    )
    return json.dumps(
        {event.type: event.model_dump(mode="json") for event in log.events}
    )


def never() -> bool:
    return False


def live(
    run: Run,
    behaviour: str,
    is_shutting_down: Callable[[], bool] = never,
    *,
    timing: Timing = FAST,
) -> Run:
    """One attempt of the run, from claim to end."""
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    supervise(
        claim,
        is_shutting_down=is_shutting_down,
        command=script(behaviour),
        timing=timing,
    )
    return Run.objects.get(id=run.id)


def after_steps(
    num_steps: int, run: Run, act: Callable[[], object]
) -> Callable[[], bool]:
    """Acts once so many steps are stored; called in every turn of the supervisor."""
    done = []

    def is_shutting_down() -> bool:
        if not done and run.steps.count() >= num_steps:
            done.append(act())
        return False

    return is_shutting_down


def rest_is_over(run: Run) -> None:
    Run.objects.filter(id=run.id).update(not_before=None)


def test_a_finished_run_has_all_its_steps(run):
    ended = live(run, "finish")

    assert ended.state == RunState.FINISHED
    assert ended.last_step == 3
    assert ended.finished_at is not None
    assert ended.lease_until is None
    assert list(run.steps.order_by("step").values_list("step", flat=True)) == [1, 2, 3]


def test_the_run_directory_contains_the_launched_config(run):
    live(run, "finish")

    directory = run_directory(run.id)
    config = directory.config.read_text()
    assert '"rows": "rows.jsonl"' in config
    assert len(directory.rows.read_bytes().split(b"\n")) == 9
    assert "Claimed by worker-1." in directory.attempt(1).supervisor_log.read_text()


def test_a_failed_run_shows_the_trainers_error(run):
    ended = live(run, "fail")

    assert ended.state == RunState.FAILED
    assert ended.fail_reason == "No tokenizer."


def test_a_refused_configuration_is_shown_with_its_sentence(run):
    ended = live(run, "refuse")

    assert ended.state == RunState.FAILED
    assert "optim.num_steps" in ended.fail_reason


def test_a_trainer_that_leaves_without_a_word_has_failed(run):
    ended = live(run, "fall_silent")

    assert ended.state == RunState.FAILED
    assert ended.fail_reason


def test_a_stop_ends_with_a_checkpoint(run, alice):
    act = after_steps(2, run, lambda: request_stop(run=run, user=alice))

    ended = live(run, "train_until_stopped", act)

    assert ended.state == RunState.STOPPED
    assert run.checkpoints.get().step == ended.last_step
    assert AuditEntry.objects.get(verb="run.stop_requested").actor == alice


def is_loading(run: Run) -> bool:
    log = run_directory(run.id).attempt(1).trainer_log
    return log.exists() and "loading" in log.read_text()


def test_a_run_that_is_stopped_as_it_loads_has_stopped(run, alice):
    def act() -> bool:
        if is_loading(run) and Run.objects.get(id=run.id).state == RunState.STARTING:
            request_stop(run=run, user=alice)
        return False

    ended = live(run, "load_until_stopped", act)

    assert ended.state == RunState.STOPPED
    assert run.attempts.get().outcome == "stopped at step 0"


def test_a_run_that_loads_as_its_worker_shuts_down_is_handed_back(run):
    ended = live(run, "load_until_stopped", lambda: is_loading(run))

    assert (ended.state, ended.num_losses) == (RunState.QUEUED, 0)


def test_a_trainer_that_talks_without_end_does_not_fill_the_disk(
    run, alice, monkeypatch
):
    monkeypatch.setattr(process, "LOG_CAP_BYTES", 10_000)
    monkeypatch.setattr(process, "LOG_KEPT_BYTES", 1_000)
    stop = after_steps(30, run, lambda: request_stop(run=run, user=alice))

    live(run, "print_until_stopped", is_shutting_down=stop)

    text = run_directory(run.id).attempt(1).trainer_log.read_text()
    assert re.match(r"\[\d+ bytes left out\]\n", text)


def test_a_trainer_deaf_to_a_stop_is_killed(run, alice):
    act = after_steps(1, run, lambda: request_stop(run=run, user=alice))

    ended = live(run, "ignore_requests", act)

    assert ended.state == RunState.STOPPED
    assert "SIGKILL" in run.attempts.get().outcome


def test_a_worker_that_shuts_down_hands_the_run_back(run):
    ended = live(run, "train_until_stopped", lambda: run.steps.count() >= 2)

    assert ended.state == RunState.QUEUED
    assert ended.num_losses == 0
    assert ended.not_before is None
    assert run.checkpoints.exists()


def test_a_killed_trainer_costs_an_attempt_and_is_taken_up_later(run):
    ended = live(run, "be_killed")

    assert ended.state == RunState.QUEUED
    assert ended.num_losses == 1
    assert ended.not_before is not None
    assert run.steps.count() == 2
    assert claim_run(run.id, "worker-1") is None


def test_four_attempts_lost_in_a_row_end_the_run(run):
    for _ in range(4):
        rest_is_over(run)
        ended = live(run, "be_killed")

    assert ended.state == RunState.FAILED
    assert "4 times" in ended.fail_reason
    assert list(
        run.steps.filter(superseded_by=None).order_by("step").values_list("step")
    ) == [(1,), (2,)]


def test_the_same_crash_at_the_same_step_twice_is_poison(run):
    first = live(run, "crash")
    rest_is_over(run)

    second = live(run, "crash")

    assert first.state == RunState.QUEUED
    assert second.state == RunState.FAILED
    assert "crashed twice" in second.fail_reason
    assert "SIGSEGV" in second.fail_reason


def test_half_a_line_is_not_stored(run):
    live(run, "half_a_line")

    assert run.events.count() == 4
    assert not run.events.filter(type="warned").exists()


def test_a_replaced_supervisor_kills_its_trainer_and_writes_nothing(run):
    def take_away() -> None:
        Run.objects.filter(id=run.id).update(attempt=7, worker="worker-2")

    ended = live(run, "train_until_stopped", after_steps(2, run, take_away))

    assert (ended.attempt, ended.worker, ended.state) == (7, "worker-2", "running")
    log = run_directory(run.id).attempt(1).supervisor_log.read_text()
    assert "no longer holds" in log
    assert "killed the trainer" in log


def test_a_run_taken_over_during_preparation_starts_no_trainer(run, monkeypatch):
    claim = claim_run(run.id, "worker-1")
    assert claim

    def write_slowly(run: Run, **options: Any) -> None:
        write_snapshot(run, **options)
        Run.objects.filter(id=run.id).update(attempt=7, worker="worker-2")

    monkeypatch.setattr(startup, "write_snapshot", write_slowly)

    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)

    log = run_directory(run.id).attempt(1).supervisor_log.read_text()
    assert "no longer holds" in log
    assert "Started the trainer" not in log


def test_a_trainer_may_save_though_its_worker_ends_without_the_database(
    run, monkeypatch
):
    events = run_directory(run.id).attempt(1).events
    attempt = DatabaseRetry.attempt
    is_ending: list[bool] = []

    def attempt_unless_away(self: DatabaseRetry, action: Callable[[], None]) -> bool:
        if is_ending and b"run_stopped" not in events.read_bytes():
            self._down_since = 0.0  # for longer than the patience
            return False
        return attempt(self, action)

    def is_shutting_down() -> bool:
        if run.steps.count() >= 2:
            is_ending.append(True)
        return bool(is_ending)

    monkeypatch.setattr(DatabaseRetry, "attempt", attempt_unless_away)

    ended = live(run, "save_slowly", is_shutting_down)

    assert ended.state == RunState.QUEUED
    assert run.checkpoints.get().step == 2


def test_a_run_with_deleted_checkpoints_is_not_started_over(run):
    live(run, "train_until_stopped", lambda: run.steps.count() >= 2)

    ended = live(run, "finish")

    assert ended.state == RunState.FAILED
    assert "checkpoints can be" in ended.fail_reason
    assert not run.attempts.filter(ended_at=None).exists()
    assert run.attempts.get(number=2).outcome.startswith("ended by its worker")


def test_a_worker_that_slept_does_not_touch_the_next_attempt(run, monkeypatch):
    first = claim_run(run.id, "worker-1")
    Run.objects.filter(id=run.id).update(state=RunState.QUEUED, lease_until=None)
    assert first
    assert claim_run(run.id, "worker-2")
    broken = OSError("no folder here")
    monkeypatch.setattr(startup, "write_snapshot", Mock(side_effect=broken))

    supervise(first, is_shutting_down=never, command=script("finish"), timing=FAST)

    run.refresh_from_db()
    assert (run.state, run.attempt, run.worker) == ("starting", 2, "worker-2")
    log = run_directory(run.id).attempt(1).supervisor_log.read_text()
    assert "no longer holds" in log


def test_a_run_that_was_deleted_since_its_claim_is_let_go(run):
    claim = claim_run(run.id, "worker-1")
    assert claim
    Run.objects.filter(id=run.id).delete()

    supervise(claim, is_shutting_down=never, command=script("finish"), timing=FAST)

    log = run_directory(run.id).attempt(1).supervisor_log.read_text()
    assert "no longer holds" in log
