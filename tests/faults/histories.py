"""A run's stored data, and what it should be in the end."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from django.db.models.functions import Now

from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import notify_workers
from dashboard.supervision.lease import reap
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
            (c.text, c.reward, c.advantage) for c in group.completions
        ]
        for group in run.groups.current().select_related("packed_completions")
    }


def assert_whole(run: Run, expected: History, *, num_steps: int = NUM_STEPS) -> None:
    """As without the fault: no gap, no duplicate, the same values and texts."""
    steps = range(1, num_steps + 1)
    shown = run.steps.filter(superseded_by=None).order_by("step")
    assert list(shown.values_list("step", flat=True)) == list(steps)
    assert stored_series(run) == {step: expected.series[step] for step in steps}
    assert stored_groups(run) == {
        key: group for key, group in expected.groups.items() if key[0] in steps
    }
    assert_lines_stored_once(run)


def assert_as_logged(run: Run) -> None:
    """In one attempt, with each step, group and line of its log once."""
    logged = read_log(run_directory(run.id).attempt(1).events)
    assert run.attempt == 1
    assert stored_series(run) == series(logged)
    assert stored_groups(run) == groups(logged)
    assert_lines_stored_once(run)


def assert_lines_stored_once(run: Run) -> None:
    """Each attempt's lines without gaps, and attempts in ascending order."""
    stored = list(run.events.order_by("seq").values_list("seq", "attempt", "line"))
    for attempt in range(1, run.attempt + 1):
        lines = [line for _, number, line in stored if number == attempt]
        assert lines == list(range(1, len(lines) + 1)), f"attempt {attempt}"
    assert [attempt for _, attempt, _ in stored] == sorted(
        attempt for _, attempt, _ in stored
    )
    assert stored[-1][0] <= run.seq


def reaches(run: Run, step: int) -> Callable[[], bool]:
    def check() -> bool:
        run.refresh_from_db()
        assert run.state != RunState.FAILED, run.fail_reason
        return run.last_step >= step

    return check


def is_in(run: Run, state: RunState) -> Callable[[], bool]:
    def check() -> bool:
        run.refresh_from_db()
        assert run.state == state or run.state != RunState.FAILED, run.fail_reason
        return run.state == state

    return check


def end_backoff(run: Run) -> None:
    """As the dispatcher does 10 s later."""
    Run.objects.filter(id=run.id).update(not_before=None)
    notify_workers()


def lose_lease(run: Run) -> None:
    """As the reaper does when the lease is not renewed."""
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))
    # The reaper skips a locked row until the next time.
    wait_for(lambda: reap(grace=timedelta(0)), what="the lease to be reaped")


def started_trainer(data: Path, run: Run, *, attempt: int = 1) -> int:
    """Its process id, once the supervisor has logged it."""
    return wait_for(
        lambda: trainer_pid(data, run.id, attempt=attempt), what="a trainer", seconds=30
    )
