"""A run whose trainer dies each time fails with a reason; other runs continue."""

from collections.abc import Iterator

import pytest

from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from tests.faults.histories import assert_whole, end_backoff, is_in
from tests.faults.workers import wait_for

pytestmark = pytest.mark.faults
NUM_STEPS = 20
LAST_LINE = "Loading a model"
# Read by every Python that the worker starts, before anything else: a trainer whose
# run's folder holds the file `poison` ends itself as the file says.
SITECUSTOMIZE = """
import os, pathlib, sys
words = sys.orig_argv
if "trainer" in words and "--out" in words:
    out = pathlib.Path(words[words.index("--out") + 1])
    poison = out.parent.parent / "poison"
    if poison.exists():
        sys.stderr.write("Loading a model\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), int(poison.read_text()))
"""


@pytest.fixture
def poisoning(tmp_path) -> str:
    """A PYTHONPATH."""
    folder = tmp_path / "poison"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return str(folder)


def attempts_of(run: Run) -> Iterator[Run]:
    """The run after each of its attempts, without the backoff that follows."""
    while run.state != RunState.FAILED:
        attempt = run.attempt
        wait_for(lambda: has_ended(run, attempt), what=f"an end of life {attempt + 1}")  # noqa: B023 - waited for in this turn
        yield run
        end_backoff(run)


def has_ended(run: Run, attempt: int) -> bool:
    run.refresh_from_db()
    return run.attempt > attempt and run.state in (RunState.QUEUED, RunState.FAILED)


@pytest.mark.parametrize(
    ("signal_number", "num_attempts", "reason"),
    [
        (9, 4, "lost 4 times"),
        (11, 2, "killed by SIGSEGV"),
    ],
    ids=["SIGKILL", "SIGSEGV"],
)
def test_a_poison_run_fails_with_a_reason_and_others_continue(
    launch_tiny,
    start_worker,
    poisoning,
    undisturbed,
    signal_number,
    num_attempts,
    reason,
):
    poisoned = launch_tiny(num_steps=NUM_STEPS)
    other = launch_tiny(num_steps=NUM_STEPS)
    folder = run_directory(poisoned.id).path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "poison").write_text(str(signal_number))
    start_worker("one", PYTHONPATH=poisoning)

    attempts = [run.num_losses for run in attempts_of(poisoned)]
    wait_for(is_in(other, RunState.FINISHED), what="the other run")

    assert poisoned.attempt == len(attempts) == num_attempts
    assert reason in poisoned.fail_reason
    assert LAST_LINE in poisoned.fail_reason
    assert (other.attempt, other.num_losses) == (1, 0)
    assert_whole(other, undisturbed, num_steps=NUM_STEPS)
