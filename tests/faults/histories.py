"""What the database holds of a run by now, and what it should hold in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from django.db.models.functions import Now

from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import notify_workers
from dashboard.training.lease import reap
from tests.faults.tiny import (
    NUM_STEPS,
    Groups,
    History,
    Series,
    groups,
    read_log,
    series,
    untimed,
)
from tests.faults.workers import trainer_pid, wait_for


def stored_series(run: Run) -> Series:
    run.refresh_from_db()
    rows = run.steps.filter(superseded_by=None).order_by("step")
    return {
        row.step: untimed(dict(zip(run.metric_names, row.values, strict=False)))
        for row in rows
    }


def stored_groups(run: Run) -> Groups:
    return {
        (group.step, group.prompt_index): [
            (one.text, one.reward, one.advantage) for one in group.completions
        ]
        for group in run.groups.current().select_related("packed_completions")
    }


def assert_whole(run: Run, expected: History, *, num_steps: int = NUM_STEPS) -> None:
    """As if nothing had happened: no gap, no duplicate, the same values and texts."""
    steps = range(1, num_steps + 1)
    shown = run.steps.filter(superseded_by=None).order_by("step")
    assert list(shown.values_list("step", flat=True)) == list(steps)
    assert stored_series(run) == {step: expected.series[step] for step in steps}
    assert stored_groups(run) == {
        place: group for place, group in expected.groups.items() if place[0] in steps
    }
    assert_told_once(run)


def assert_as_told(run: Run) -> None:
    """In one life: each step, group and line of its log, once."""
    told = read_log(run_directory(run.id).attempt(1).events)
    assert run.attempt == 1
    assert stored_series(run) == series(told)
    assert stored_groups(run) == groups(told)
    assert_told_once(run)


def assert_told_once(run: Run) -> None:
    """Each life's lines from the first on, and no later one with an earlier number."""
    told = list(run.events.order_by("seq").values_list("seq", "attempt", "line"))
    for attempt in range(1, run.attempt + 1):
        lines = [line for _, of, line in told if of == attempt]
        assert lines == list(range(1, len(lines) + 1)), f"attempt {attempt}"
    assert [attempt for _, attempt, _ in told] == sorted(
        attempt for _, attempt, _ in told
    )
    assert told[-1][0] <= run.seq


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
    notify_workers()


def lose_lease(run: Run) -> None:
    """What the reaper does, as beat has it, when nobody renews the lease."""
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))
    # A row that is just being written is passed over until the next time.
    wait_for(lambda: reap(grace=timedelta(0)), what="the lease to be found out")


def started_trainer(data: Path, run: Run, *, attempt: int = 1) -> int:
    """Its process, once the supervisor has written it down."""
    return wait_for(
        lambda: trainer_pid(data, run.id, attempt=attempt), what="a trainer", seconds=30
    )
