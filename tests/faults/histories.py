"""What the database holds of a run by now, and what it should hold in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from django.db.models.functions import Now

from dashboard.runs.doorbell import ring_workers
from dashboard.runs.models import Run, RunState
from dashboard.training.reaper import reap
from tests.faults.tiny import NUM_STEPS, untimed
from tests.faults.workers import trainer_pid, wait_for

Series = dict[int, dict[str, float | None]]


def stored_series(run: Run) -> Series:
    run.refresh_from_db()
    rows = run.steps.filter(superseded_by=None).order_by("step")
    return {
        row.step: untimed(dict(zip(run.metric_names, row.values, strict=False)))
        for row in rows
    }


def assert_whole(run: Run, expected: Series, *, num_steps: int = NUM_STEPS) -> None:
    """As if nothing had happened: no gap, no duplicate, the same values."""
    stored = stored_series(run)
    steps = list(
        run.steps.filter(superseded_by=None)
        .order_by("step")
        .values_list("step", flat=True)
    )
    assert steps == list(range(1, num_steps + 1))
    assert stored == {step: expected[step] for step in steps}


def reaches(run: Run, step: int) -> Callable[[], bool]:
    def look() -> bool:
        run.refresh_from_db()
        assert run.state != RunState.FAILED, run.fail_reason
        return run.last_step >= step

    return look


def is_in(run: Run, state: RunState) -> Callable[[], bool]:
    def look() -> bool:
        run.refresh_from_db()
        assert run.state == state or run.state != RunState.FAILED, run.fail_reason
        return run.state == state

    return look


def end_rest(run: Run) -> None:
    """What the dispatcher does 10 s later."""
    Run.objects.filter(id=run.id).update(not_before=None)
    ring_workers()


def lose_lease(run: Run) -> None:
    """What the reaper does, as beat has it, when nobody renews the lease."""
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))
    # A row that is just being written is passed over until the next time.
    wait_for(lambda: reap(grace=timedelta(0)), what="the lease to be found out")


def started_trainer(data: Path, run: Run, *, epoch: int = 1) -> int:
    """Its process, once the supervisor has written it down."""
    return wait_for(
        lambda: trainer_pid(data, run.id, epoch=epoch), what="a trainer", seconds=30
    )
