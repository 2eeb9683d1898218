"""A trainer that hangs: its stack is in the log, it is killed, the run is resumed."""

import os
import signal
from pathlib import Path

import pytest

from dashboard.runs.models import RunState
from dashboard.runs.progress import describe_progress
from dashboard.runs.queries import RunDirectory
from dashboard.supervision.process import trainer_command
from dashboard.supervision.supervisor import Timing
from tests.faults.attempts import Once, run_attempt, supervisor_log, trainer_log
from tests.faults.histories import assert_whole

pytestmark = pytest.mark.faults
NUM_STEPS = 40
LIMIT_SECONDS = 8.0


def never_returning(
    directory: RunDirectory, *, attempt: int, resume_from: Path | None
) -> list[str]:
    """A real trainer whose model sleeps from its 30th step on."""
    python, _, _, *rest = trainer_command(
        directory, attempt=attempt, resume_from=resume_from
    )
    return [python, str(Path(__file__).with_name("hanging_trainer.py")), *rest]


def test_a_model_that_never_returns_is_killed_with_its_stack_in_the_log(
    launch_tiny, data_folder, undisturbed
):
    run = launch_tiny(num_steps=NUM_STEPS)
    timing = Timing(hang_seconds=LIMIT_SECONDS, hang_patience_seconds=2)

    lost = run_attempt(run, timing=timing, command=never_returning)

    assert (lost.state, lost.num_losses) == (RunState.QUEUED, 1)
    assert "hung" in describe_progress(lost).notice
    stack = trainer_log(data_folder, run, attempt=1)
    assert "sleep_for_ever" in stack
    assert "_sample_rows" in stack
    assert "was killed" in supervisor_log(data_folder, run, attempt=1)

    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=2).from_step == 20
    assert_whole(ended, undisturbed, num_steps=NUM_STEPS)


def test_a_trainer_suspended_by_a_user_continues_later(launch_tiny, data_folder):
    run = launch_tiny(num_steps=NUM_STEPS)
    strike = Once(
        run, data_folder, step=22, act=lambda pid: os.kill(pid, signal.SIGSTOP)
    )

    ended = run_attempt(
        run,
        act=strike,
        timing=Timing(hang_seconds=LIMIT_SECONDS, hang_patience_seconds=15),
    )

    assert (ended.state, ended.attempt) == (RunState.FINISHED, 1)
    assert "lost its supervisor" in supervisor_log(data_folder, run, attempt=1)
    assert "most recent call" in trainer_log(data_folder, run, attempt=1)
