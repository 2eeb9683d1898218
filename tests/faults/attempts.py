"""Attempts of a run, each from claim to end, with a real trainer and supervisor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.workers import trainer_pid

# Models are imported when a test runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.runs.models import Run
    from dashboard.supervision.supervisor import Timing


def run_attempt(
    run: Run,
    *,
    act: Callable[[], object] = lambda: None,
    timing: Timing | None = None,
    command: Callable[..., list[str]] | None = None,
) -> Run:
    """Claim and supervise the run in this process; `act` is called at each poll."""
    from dashboard.runs.models import Run as Runs
    from dashboard.supervision.lease import claim_run
    from dashboard.supervision.process import trainer_command
    from dashboard.supervision.supervisor import Timing as Timings
    from dashboard.supervision.supervisor import supervise

    Runs.objects.filter(id=run.id).update(not_before=None)  # no backoff
    claim = claim_run(run.id, "here")
    assert claim is not None, Runs.objects.get(id=run.id).state

    def is_shutting_down() -> bool:
        act()
        return False

    supervise(
        claim,
        is_shutting_down=is_shutting_down,
        command=command or trainer_command,
        timing=timing or Timings(),
    )
    return Runs.objects.get(id=run.id)


class Once:
    """Acts once on the trainer's process id, when the run has reached `step`."""

    def __init__(
        self, run: Run, data: Path, *, step: int, act: Callable[[int], object]
    ) -> None:
        self.run, self.data, self.step, self.act = run, data, step, act
        self.pid: int | None = None

    def __call__(self) -> None:
        if self.pid is not None:
            return
        self.run.refresh_from_db()
        if self.run.last_step >= self.step:
            self.pid = trainer_pid(self.data, self.run.id, attempt=self.run.attempt)
            assert self.pid is not None
            self.act(self.pid)


def supervisor_log(data: Path, run: Run, *, attempt: int) -> str:
    folder = data / "runs" / str(run.id) / "epochs" / str(attempt)
    return (folder / "supervisor.log").read_text()


def trainer_log(data: Path, run: Run, *, attempt: int) -> str:
    folder = data / "runs" / str(run.id) / "epochs" / str(attempt)
    return (folder / "trainer.log").read_text()
