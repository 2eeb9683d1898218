"""`cohort runs watch`: a bar on a terminal, else a line for each step."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

from trainer.client.api.client import Client
from trainer.client.api.records import Point
from trainer.client.api.run import LOOK_SECONDS, Run, follow
from trainer.client.output import (
    BY_STATE,
    Bar,
    Ended,
    duration,
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
    shows = _shower(as_json=as_json)
    if from_step is None:
        from_step = shows.first_step(client, run_id)
    try:
        with shows:
            for look in follow(
                client, run_id, from_step=from_step, every_seconds=every_seconds
            ):
                run = look.run
                shows.look(run, look.points)
    except KeyboardInterrupt:
        remark(f"Stopped watching; run {run_id} continues.")
        raise
    if not as_json:
        reason = f" {run.reason}" if run.reason else ""
        say(
            f"Run {run.id} ({run.name}) {_past(run.state)} at step "
            f"{run.last_step:,} of {run.num_steps:,}.{reason} {run.address}"
        )
    raise Ended(BY_STATE[run.state])


def _past(state: str) -> str:
    return f"was {state}" if state == "stopped" else state


class Lines:
    """Each change of state and each step, also those that are done."""

    def __init__(self) -> None:
        self._state = ""

    def first_step(self, client: Client, run_id: int) -> int:
        return 0

    def look(self, run: Run, points: Sequence[Point]) -> None:
        if run.state != self._state:
            self._state = run.state
            self.state(run)
        for point in points:
            self.point(run, point)

    def state(self, run: Run) -> None:
        say(f"run {run.id} {run.state}")

    def point(self, run: Run, point: Point) -> None:
        told = told_of(point)
        if told:
            say(f"step {point.step}/{run.num_steps}  {told}")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class JsonLines(Lines):
    def state(self, run: Run) -> None:
        say_json({"event": "state", "run": run.id, "state": run.state})

    def point(self, run: Run, point: Point) -> None:
        say_json(
            {
                "event": "step",
                "run": run.id,
                "step": point.step,
                "num_steps": run.num_steps,
                "time": point.time,
                "values": point.values,
            }
        )


class OnTerminal(Lines):
    """One line that is drawn over; held-out scores stay."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = Bar("", stream=sys.stdout)
        self._began: tuple[float, int] | None = None
        self._told = ""

    def first_step(self, client: Client, run_id: int) -> int:
        """The last one that is done."""
        return client.runs.get(run_id).last_step

    def state(self, run: Run) -> None:
        self._bar.clear()
        super().state(run)

    def look(self, run: Run, points: Sequence[Point]) -> None:
        super().look(run, points)
        if self._began is None and run.state == "running":
            self._began = (time.monotonic(), run.last_step)
        share = run.last_step / max(run.num_steps, 1)
        text = f"step {run.last_step:,}/{run.num_steps:,}  {self._told}"
        self._bar.show(text + self._rest(run), share=min(share, 0.999))

    def point(self, run: Run, point: Point) -> None:
        self._told = told_of(point) or self._told
        if scores := scores_of(point):
            self._bar.clear()
            told = "  ".join(f"{name} {number(v)}" for name, v in scores.items())
            say(f"step {point.step}/{run.num_steps}  {told}")

    def _rest(self, run: Run) -> str:
        if self._began is None or run.last_step <= self._began[1]:
            return ""
        seconds = time.monotonic() - self._began[0]
        each = seconds / (run.last_step - self._began[1])
        return f"  {duration(each * (run.num_steps - run.last_step))} left"

    def __enter__(self) -> None:
        self._bar.__enter__()

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)


def told_of(point: Point) -> str:
    own = [(title, point.values.get(name)) for name, title in SHOWN.items()]
    told = [(title, value) for title, value in own if value is not None]
    told += scores_of(point).items()
    return "  ".join(f"{name} {number(value)}" for name, value in told)


def scores_of(point: Point) -> dict[str, float]:
    """Of held-out prompts, without the ends of their intervals and lengths."""
    return {name: v for name, v in point.values.items() if SCORE.fullmatch(name)}


def _shower(*, as_json: bool) -> Lines:
    if as_json:
        return JsonLines()
    return OnTerminal() if sys.stdout.isatty() else Lines()
