"""How long a run takes: from its own latest steps, or past runs of its shape."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from django.db.models import QuerySet

from dashboard.runs.models import Run

Shape = tuple[str, ...]
STEP_SECONDS = "time/step"  # the metric
# One step alone may take thrice as long as the next; so many even that out.
PACE_STEPS = 20
PACE_COLUMNS = ("summary__step_seconds", "summary__last")
# What the time of a step depends on most.
SHAPED_BY = {
    "model": ("path", "revision", "device", "dtype", "lora_rank", "quantization"),
    "rollout": ("engine", "source", "prompts_per_step", "group_size", "max_new_tokens"),
    "optim": ("updates_per_batch",),
    "distributed": ("num_processes",),
}
MOST_LOOKED_AT = 300  # past runs, the latest ones
PARTS = (*SHAPED_BY, "phases")
# A configuration without its recipe and the like, which can be long.
CONFIG_COLUMNS = tuple(f"config__{part}" for part in PARTS)


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that CONFIG_COLUMNS read; null where an older run lacks one."""
    return {part: row[f"config__{part}"] for part in PARTS}


def shape_of(config: Mapping[str, Any]) -> Shape:
    settings = [
        repr((config.get(part) or {}).get(name))
        for part, names in SHAPED_BY.items()
        for name in names
    ]
    return (*settings, repr(config.get("phases") or []))


def past_runs(
    runs: QuerySet[Run], *columns: str
) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """Shape and columns of each that made a step, newest first; one query."""
    past = runs.filter(last_step__gt=0, origin={}).order_by("-id")
    for row in past.values(*columns, *CONFIG_COLUMNS)[:MOST_LOOKED_AT]:
        yield shape_of(config_of(row)), row


def own_step_seconds(row: Mapping[str, Any]) -> float | None:
    """The mean of a run's latest steps, from PACE_COLUMNS."""
    return step_seconds(row["summary__step_seconds"], row["summary__last"])


def step_seconds(
    latest: Sequence[float] | None, last: Mapping[str, Any] | None
) -> float | None:
    """The mean of the latest steps; after a resume, what the last one took."""
    if latest:
        return fmean(latest)
    seconds: float | None = (last or {}).get(STEP_SECONDS)
    return seconds


def past_step_seconds(shapes: Collection[Shape]) -> dict[Shape, float]:
    """The median of past runs' latest steps, by shape; one query, or none."""
    if not shapes:
        return {}
    found: dict[Shape, list[float]] = {}
    for shape, row in past_runs(Run.objects.all(), *PACE_COLUMNS):
        seconds = own_step_seconds(row)
        if seconds and shape in shapes:
            found.setdefault(shape, []).append(seconds)
    return {shape: median(times) for shape, times in found.items()}


def steps_take(num_steps: int, step_seconds: float | None) -> float | None:
    """Seconds; evaluations come on top. None: not known."""
    return step_seconds * num_steps if step_seconds else None
