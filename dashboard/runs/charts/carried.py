"""What a fork goes on counting from: its parent's totals and time, up to the fork."""

from __future__ import annotations

from typing import Any

from dashboard.runs.charts.figures import AXES
from dashboard.runs.models import Run

SECONDS = "seconds"  # from the end of the first step of all to that of the fork's step


def carried_to(run: Run, step: int) -> dict[str, float]:
    """The axes of a run and of those that it goes on from, after this step.

    Without what was not counted from the first step on. Three queries.
    """
    carried: dict[str, float] = run.fork_totals or {}
    if step == run.fork_step:
        return carried
    history = run.steps.filter(superseded_by=None, step__lte=step).order_by("step")
    at = history.filter(step=step).values_list("time", "values").first()
    if at is None:
        return {}
    time, values = at
    named = dict(zip(run.metric_names, values, strict=False))
    found = {name: v for name in AXES if (v := named.get(name)) is not None}
    if run.fork_step is None or SECONDS in carried:
        begins = history.values_list("step", "time")[:2]
        clock = [(n, moment.timestamp()) for n, moment in begins]
        begin = begin_of(clock, fork_step=run.fork_step, carried=carried)
        found[SECONDS] = round(time.timestamp() - begin, 3)
    return found


def totals_of(carried: dict[str, Any] | None) -> dict[str, float]:
    """Those that ingest goes on adding up."""
    return {name: v for name, v in (carried or {}).items() if name in AXES}


def begin_of(
    clock: list[tuple[int, float]],
    *,
    fork_step: int | None,
    carried: dict[str, float],
) -> float:
    """The moment at which a run's time axis is 0; static/js/charts/axis.js has it too.

    That of a run is the end of its first step. A fork's first step ends behind where
    its parent's curve does by as long as its steps take: that of the second is known.
    """
    (step, time), *rest = clock
    if fork_step is None or SECONDS not in carried:
        return time
    pace = (rest[0][1] - time) / (rest[0][0] - step) if rest else 0.0
    return time - pace * (step - fork_step) - carried[SECONDS]
