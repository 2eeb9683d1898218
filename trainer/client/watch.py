"""`cohort runs watch`: a line for each step."""

from __future__ import annotations

import re
import sys

from trainer.client.api.client import Client
from trainer.client.api.records import Point
from trainer.client.api.run import LOOK_SECONDS, Run, follow
from trainer.client.output import (
    BY_STATE,
    Ended,
    number,
    remark,
    say,
    say_json,
)

SCORE = re.compile(r"eval/([^/]+)/(mean|pass@\d+|maj@(?!1$)\d+)")
SHOWN = {
    "reward/mean": "reward",
    "kl/mean": "kl",
    "entropy": "entropy",
    "loss": "loss",
    "completion/mean_length": "length",
    "time/step": "seconds",
}


def show_until_it_ends(
    client: Client,
    run_id: int,
    *,
    as_json: bool,
    from_step: int | None = None,
    every_seconds: float = LOOK_SECONDS,
) -> None:
    """Raises Ended with what the run's end means to a script."""
    if from_step is None:  # who looks at a terminal need not see what is long done
        is_terminal = sys.stdout.isatty()
        from_step = client.runs.get(run_id).last_step if is_terminal else 0
    looks = follow(client, run_id, from_step=from_step, every_seconds=every_seconds)
    state = ""
    try:
        for run, points in looks:
            if run.state != state:
                state = run.state
                _say_state(run, as_json=as_json)
            for point in points:
                _say_point(run, point, as_json=as_json)
    except KeyboardInterrupt:
        remark(f"Stopped watching; run {run_id} continues.")
        raise
    if not as_json:
        reason = f" {run.reason}" if run.reason else ""
        was = "was " if run.state == "stopped" else ""
        say(
            f"Run {run.id} ({run.name}) {was}{run.state} at step "
            f"{run.last_step:,} of {run.num_steps:,}.{reason} {run.address}"
        )
    raise Ended(BY_STATE[run.state])


def _say_state(run: Run, *, as_json: bool) -> None:
    if as_json:
        say_json({"event": "state", "run": run.id, "state": run.state})
    else:
        say(f"run {run.id} {run.state}")


def _say_point(run: Run, point: Point, *, as_json: bool) -> None:
    if as_json:
        place = {"event": "step", "run": run.id, "num_steps": run.num_steps}
        say_json(
            place | {"step": point.step, "time": point.time, "values": point.values}
        )
    elif told := _told(point):
        say(f"step {point.step}/{run.num_steps}  {told}")


def _told(point: Point) -> str:
    """Of held-out prompts the scores, without their lengths and intervals."""
    values = point.values
    told = {title: values[name] for name, title in SHOWN.items() if name in values}
    told |= {name: value for name, value in values.items() if SCORE.fullmatch(name)}
    return "  ".join(f"{name} {number(value)}" for name, value in told.items())
