"""What a resumed run went back before: shown in grey, never mixed with its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.runs.charts.curves import Clock, Curve, read_history
from dashboard.runs.models import Epoch, Evaluation, Run, Step

MAX_TAILS = 3  # of a run that was resumed more often, the newest
MAX_POINTS = 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    epoch: int  # the life that went back
    after: int  # the last step it kept
    clock: Clock
    curves: dict[str, Curve]


def read_tails(run: Run, metrics: Sequence[str]) -> list[Tail]:
    """The newest first; a run that never went back costs one query."""
    gone = Step.objects.filter(run=run, superseded_by__isnull=False)
    numbers = gone.order_by("-superseded_by").values_list("superseded_by", flat=True)
    epochs = [n for n in numbers.distinct()[:MAX_TAILS] if n is not None]
    kept = Epoch.objects.filter(run=run, number__in=epochs)
    after = dict(kept.values_list("number", "from_step")) if epochs else {}
    return [_read_tail(run, metrics, n, after.get(n, 0)) for n in epochs]


def _read_tail(run: Run, metrics: Sequence[str], epoch: int, after: int) -> Tail:
    history = read_history(run, metrics, max_points=MAX_POINTS, superseded_by=epoch)
    curves = {name: curve for name, curve in history.curves.items() if curve.steps}
    evaluations = Evaluation.objects.filter(run=run, superseded_by=epoch)
    for step, values in evaluations.order_by("step").values_list("step", "metrics"):
        for name, value in values.items():
            if value is not None:
                curve = curves.setdefault(name, Curve())
                curve.steps.append(step)
                curve.values.append(value)
    return Tail(epoch=epoch, after=after, clock=history.clock, curves=curves)
