"""`cohort runs watch`: a line for each step."""

from __future__ import annotations

import re
import sys

from trainer.client.api import Client
from trainer.client.api.records import Point
from trainer.client.api.run import POLL_SECONDS, follow
from trainer.client.output import (
    BY_STATE,
    CommandEnded,
    number,
    print_error,
    print_json,
    print_text,
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
    every_seconds: float = POLL_SECONDS,
) -> None:
    """Raises CommandEnded with the exit code of the run's final state."""
    if from_step is None:  # on a terminal, skip the steps already done
        is_terminal = sys.stdout.isatty()
        from_step = client.runs.get(run_id).last_step if is_terminal else 0
    updates = follow(client, run_id, from_step=from_step, every_seconds=every_seconds)
    state = ""
    try:
        for run, points in updates:
            if run.state != state:
                state = run.state
                if as_json:
                    print_json({"event": "state", "run": run.id, "state": run.state})
                else:
                    print_text(f"run {run.id} {run.state}")
            for point in points:
                if as_json:
                    print_json(
                        {
                            "event": "step",
                            "run": run.id,
                            "num_steps": run.num_steps,
                            "step": point.step,
                            "time": point.time,
                            "values": point.values,
                        }
                    )
                elif values := _values_text(point):
                    print_text(f"step {point.step}/{run.num_steps}  {values}")
    except KeyboardInterrupt:
        print_error(f"Stopped watching; run {run_id} continues.")
        raise
    if not as_json:
        reason = f" {run.reason}" if run.reason else ""
        was = "was " if run.state == "stopped" else ""
        print_text(
            f"Run {run.id} ({run.name}) {was}{run.state} at step "
            f"{run.last_step:,} of {run.num_steps:,}.{reason} {run.address}"
        )
    raise CommandEnded(BY_STATE[run.state])


def _values_text(point: Point) -> str:
    """Metrics and held-out scores, without held-out lengths and intervals."""
    values = point.values
    parts = {title: values[name] for name, title in SHOWN.items() if name in values}
    parts |= {name: value for name, value in values.items() if SCORE.fullmatch(name)}
    return "  ".join(f"{name} {number(value)}" for name, value in parts.items())
