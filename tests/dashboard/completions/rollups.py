"""Runs with rollups, made as ingest leaves them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.composition import Composition
from dashboard.completions.signals.records import StepGroup
from dashboard.completions.signals.rollup import roll_up
from dashboard.runs.models import Run

PLAIN = Composition(kind="sum", recipe=None, weights={})
WEIGHTED = Composition(kind="sum", recipe=None, weights={"answer": 1.0, "format": 0.2})


def make_rollup(
    run: Run,
    step: int,
    groups: Sequence[StepGroup] = (),
    *,
    seconds: Mapping[str, float] | None = None,
    composition: Composition = PLAIN,
    superseded_by: int | None = None,
) -> StepRollup:
    metrics = {f"time/{name}": value for name, value in (seconds or {}).items()}
    return StepRollup.objects.create(
        run=run,
        step=step,
        attempt=1,
        superseded_by=superseded_by,
        **asdict(roll_up(groups, metrics, composition, step)),
    )
