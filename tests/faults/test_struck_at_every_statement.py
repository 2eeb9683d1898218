"""A signal, or the loss of the connection, at every statement of a run's life.

From its claim over what is stored to its end, COMMIT included: a proxy counts what is
asked of the database, and strikes at the first statement of one run, at the second of
the next, until a run's life is over before it is struck.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.runs.models import Run, RunState
from tests.dashboard.supervision.logs import metrics_of
from tests.faults.histories import lose_lease
from tests.faults.proxy import Proxy, Strike
from tests.faults.struck_attempts import NUM_STEPS, run_attempt
from tests.faults.tiny import ROOT

pytestmark = pytest.mark.faults
STRIDE = 2 * len(Strike)  # without --soak each kind strikes a few times in a life


class AttemptProcess:
    """Runs attempts whose database connection goes through the proxy."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.faults.struck_attempts", str(folder)]
        self._log = folder / "attempts.log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run_attempt(self, run: Run) -> int:
        """Exit code of the process of this attempt."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{run.id}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log()
        return int(line)

    def log(self) -> str:
        return self._log.read_text()[-3_000:]

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-struck-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def proxy(folder) -> Iterator[Proxy]:
    proxy = Proxy(folder)
    yield proxy
    proxy.close()


@pytest.fixture
def attempts(folder, app_environment) -> Iterator[AttemptProcess]:
    attempts = AttemptProcess(folder, app_environment)
    yield attempts
    attempts.close()


@pytest.fixture
def stride(request) -> int:
    return 1 if request.config.getoption("--soak") else STRIDE


def take_up(run: Run) -> None:
    """As reaper, dispatcher and another worker do, if needed."""
    run.refresh_from_db()
    if run.state in (RunState.STARTING, RunState.RUNNING):
        lose_lease(run)
    Run.objects.filter(id=run.id).update(not_before=None)
    run_attempt(run.id)


def assert_whole(run: Run) -> None:
    run.refresh_from_db()
    assert (run.state, run.last_step) == (RunState.FINISHED, NUM_STEPS)
    shown = run.steps.filter(superseded_by=None).order_by("step")
    values = {
        row.step: dict(zip(run.metric_names, row.values, strict=False)) for row in shown
    }
    assert len(shown) == NUM_STEPS
    assert {
        step: {name: value[name] for name in metrics_of(step)}
        for step, value in values.items()
    } == {step: metrics_of(step) for step in range(1, NUM_STEPS + 1)}
    for attempt in range(1, run.attempt + 1):
        lines = list(run.events.filter(attempt=attempt).values_list("line", flat=True))
        assert sorted(lines) == list(range(1, len(lines) + 1))
    assert run.checkpoints.filter(superseded_by=None).count() == 1


@pytest.mark.parametrize("strike", Strike, ids=lambda strike: strike.name)
def test_a_run_struck_at_any_statement_ends_complete(
    strike,
    proxy,
    attempts,
    launch,
    stride,
):
    # Each kind begins elsewhere, and all of them together strike everywhere in a life.
    at = 1 + 3 * list(Strike).index(strike) % stride
    begin = at
    while True:
        run = launch()
        proxy.arm(strike, at=at)
        status = attempts.run_attempt(run)
        if proxy.num_statements < at:
            break
        run.refresh_from_db()
        message = f"{strike.name} at statement {at}: {run.state}\n{attempts.log()}"
        if strike.is_sigterm:  # handed back at once, if it was not over yet
            assert run.state in (RunState.QUEUED, RunState.FINISHED), message
            assert run.num_losses == 0, message
        elif status == 0:
            assert (run.state, run.attempt) == (RunState.FINISHED, 1), message
        else:
            assert run.state not in (RunState.FAILED, RunState.LOST), message
        if run.state != RunState.FINISHED:
            take_up(run)
        assert_whole(run)
        at += stride

    assert status == 0
    assert_whole(run)
    assert at - begin >= 50, "there are more statements than that"
