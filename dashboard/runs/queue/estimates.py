"""How long a run takes: from its own latest steps, or past runs of its shape."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from statistics import fmean, median
from typing import Any

import numpy as np
from django.db.models import QuerySet

from dashboard.accounts.models import Team
from dashboard.runs.charts.series import Buckets, read_steps
from dashboard.runs.models import Run, RunEvent
from trainer.config import RunConfig

Shape = tuple[str, ...]
STEP_SECONDS = "time/step"  # the metric
# One step may take three times as long as the next; the mean evens that out.
PACE_STEPS = 20
PACE_COLUMNS = ("summary__step_seconds", "summary__last")
# What the time of a step depends on most.
SHAPED_BY = {
    "model": ("path", "revision", "device", "dtype", "lora_rank", "quantization"),
    "rollout": ("engine", "source", "prompts_per_step", "group_size", "max_new_tokens"),
    "optim": ("updates_per_batch",),
    "distributed": ("where", "num_nodes", "num_processes"),
}
# The settings whose product is the most tokens of a step, and how each is said.
SIZES = {
    "prompts_per_step": "prompts a step",
    "group_size": "completions a prompt",
    "max_new_tokens": "tokens a completion",
}
LONGEST_STEP = 1e9  # seconds; external trainers may report any number
MOST_PAST_RUNS = 300  # the latest ones
PARTS = (*SHAPED_BY, "phases")
# A configuration without its recipe and the like, which can be long.
CONFIG_COLUMNS = tuple(f"config__{part}" for part in PARTS)

MAX_RUNS = 5  # the newest ones
MAX_STEPS = 200  # of each, its last ones
READ = ("id", "last_step", "metric_names")


def config_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Take the parts that CONFIG_COLUMNS read; null where an older run lacks one."""
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
    for row in (
        runs.filter(last_step__gt=0, source={})
        .order_by("-id")
        .values(*columns, *CONFIG_COLUMNS)[:MOST_PAST_RUNS]
    ):
        yield shape_of(config_of(row)), row


def own_step_seconds(row: Mapping[str, Any]) -> float | None:
    """Average a run's latest steps, from PACE_COLUMNS."""
    return step_seconds(row["summary__step_seconds"], row["summary__last"])


def step_seconds(
    latest: Sequence[float] | None, last: Mapping[str, Any] | None
) -> float | None:
    """Average the latest steps; after a resume, take the last one."""
    if latest:
        return fmean(min(seconds, LONGEST_STEP) for seconds in latest)
    seconds: float | None = (last or {}).get(STEP_SECONDS)
    return seconds


def past_step_seconds(shapes: Collection[Shape]) -> dict[Shape, float]:
    """Take the median of past runs' latest steps, by shape; one query, or none."""
    if not shapes:
        return {}
    seconds_by_shape: dict[Shape, list[float]] = {}
    for shape, row in past_runs(Run.objects.all(), *PACE_COLUMNS):
        seconds = own_step_seconds(row)
        if seconds and shape in shapes:
            seconds_by_shape.setdefault(shape, []).append(seconds)
    return {shape: median(times) for shape, times in seconds_by_shape.items()}


def steps_take(num_steps: int, step_seconds: float | None) -> float | None:
    """Seconds, without evaluations. None: unknown."""
    return step_seconds * num_steps if step_seconds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The time of a step on a kind of device, and how many runs it was read from."""

    device: str  # as the trainer named it
    step_seconds: float
    num_runs: int
    num_ranks: int | None = None  # of those runs, where another number trains
    scaled_from: str = ""  # what they had in place of this run's tokens a step

    @property
    def device_title(self) -> str:
        return self.device.replace("cpu", "CPU")


def past_paces(team: Team, config: RunConfig) -> list[Pace]:
    """Find a pace for each kind of device, that of the newest run first.

    A step's time is the median over a run's last steps, and again over runs. A run with
    several phases has none. Two queries, and one for each run.
    """
    if config.phases:
        return []
    shape = shape_of(config.model_dump(mode="json"))
    paces = list(
        past_runs(
            Run.objects.filter(team=team, config__model__path=config.model.path), *READ
        )
    )
    alike = [run for its_shape, run in paces if its_shape == shape]
    if alike:
        return _by_device(alike)
    return _paces_of_other_ranks(config, paces) or _paces_of_other_sizes(config, paces)


def _by_device(alike: Sequence[Mapping[str, Any]]) -> list[Pace]:
    runs = [Run(**{name: row[name] for name in READ}) for row in alike[:MAX_RUNS]]
    read = read_steps(
        runs,
        [STEP_SECONDS],
        within={run.pk: Buckets(first=run.last_step - MAX_STEPS + 1) for run in runs},
    )
    by_device: dict[str, list[float]] = {}
    for run in runs:
        seconds = read[run.pk].metrics[STEP_SECONDS].values
        if len(seconds):
            medians = by_device.setdefault(_device(run.pk), [])
            medians.append(float(np.median(seconds)))
    return [
        Pace(
            device=device,
            step_seconds=median(medians),
            num_runs=len(medians),
        )
        for device, medians in by_device.items()
    ]


def _device(run_id: int) -> str:
    events = RunEvent.objects.filter(
        run=run_id, type__in=("run_started", "run_resumed")
    ).order_by("-seq")
    return str(events.values_list("body__device", flat=True).first() or "")


def _paces_of_other_ranks(
    config: RunConfig, known: Sequence[tuple[Shape, Mapping[str, Any]]]
) -> list[Pace]:
    """Take runs that differ in their ranks alone, those nearest in number.

    Their time is divided by the ranks: sampling, most of a step, shares its prompts
    evenly; communication makes it a lower bound.
    """
    wanted = config.distributed.num_ranks
    shape = _without_ranks(shape_of(config.model_dump(mode="json")))
    alike: dict[int, list[Mapping[str, Any]]] = {}
    for its_shape, run in known:
        if _without_ranks(its_shape) == shape:
            alike.setdefault(_ranks_of(run), []).append(run)
    if not alike:
        return []
    nearest = min(alike, key=lambda number: abs(number - wanted))
    return [
        replace(
            pace,
            step_seconds=pace.step_seconds * nearest / wanted,
            num_ranks=nearest,
        )
        for pace in _by_device(alike[nearest])
    ]


def _paces_of_other_sizes(
    config: RunConfig, known: Sequence[tuple[Shape, Mapping[str, Any]]]
) -> list[Pace]:
    """Take runs that differ in their tokens a step alone, those nearest in number.

    Their time is scaled by the most tokens that a step samples, which most of it takes.
    """
    tree = config.model_dump(mode="json")
    shape, wanted = _without_sizes(tree), _sizes_of(tree)
    alike: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for _, run in known:
        of_run = config_of(run)
        sizes = _sizes_of(of_run)
        if all(sizes) and _without_sizes(of_run) == shape:
            alike.setdefault(sizes, []).append(run)
    if not alike:
        return []
    factors = {sizes: prod(wanted) / prod(sizes) for sizes in alike}
    nearest = min(factors, key=lambda sizes: abs(log(factors[sizes])))
    differs = [
        f"{size:,} {noun}"
        for size, other, noun in zip(nearest, wanted, SIZES.values(), strict=True)
        if size != other
    ]
    return [
        replace(
            pace,
            step_seconds=pace.step_seconds * factors[nearest],
            scaled_from=" and ".join(differs),
        )
        for pace in _by_device(alike[nearest])
    ]


def _sizes_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    rollout = config.get("rollout") or {}
    return tuple(int(rollout.get(name) or 0) for name in SIZES)


def _without_sizes(config: Mapping[str, Any]) -> Shape:
    rollout = {**(config.get("rollout") or {}), **dict.fromkeys(SIZES)}
    return shape_of({**config, "rollout": rollout})


def _without_ranks(shape: Shape) -> Shape:
    *of_run, phases = shape
    return (*of_run[: -len(SHAPED_BY["distributed"])], phases)


def _ranks_of(row: Mapping[str, Any]) -> int:
    distributed = config_of(row)["distributed"] or {}
    return int(
        (distributed.get("num_nodes") or 1) * (distributed.get("num_processes") or 1)
    )
