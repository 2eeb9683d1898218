"""How long a run will take, told from past runs of the team with the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dashboard.accounts.models import Team
from dashboard.runs.models import Run, RunEvent, Step
from dashboard.runs.queue.pace import STEP_SECONDS, past_runs, shape_of
from trainer.config import RunConfig

MAX_RUNS = 5  # the newest ones
MAX_STEPS = 200  # of each, its last ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The time of a step on a kind of device, and how many runs it was read from."""

    device: str  # as the trainer named it: cpu
    step_seconds: float
    num_runs: int


def past_paces(team: Team, config: RunConfig) -> list[Pace]:
    """One for each kind of device, that of the newest run first.

    A step's time is the median over a run's last steps, and over runs again. A run of
    several phases is like no other one. One query, and two a run.
    """
    if config.phases:
        return []
    shape = shape_of(config.model_dump(mode="json"))
    of_model = Run.objects.filter(team=team, config__model__path=config.model.path)
    past = past_runs(of_model, "id", "metric_names")
    alike = [run for its_shape, run in past if its_shape == shape]
    by_device: dict[str, list[float]] = {}
    for run in alike[:MAX_RUNS]:
        seconds = _step_seconds(run["id"], run["metric_names"])
        if seconds is not None:
            by_device.setdefault(_device(run["id"]), []).append(seconds)
    return [
        Pace(device=device, step_seconds=median(medians), num_runs=len(medians))
        for device, medians in by_device.items()
    ]


def _step_seconds(run_id: int, metric_names: list[str]) -> float | None:
    if STEP_SECONDS not in metric_names:
        return None
    value = f"values__{metric_names.index(STEP_SECONDS)}"
    steps = Step.objects.filter(run=run_id, superseded_by=None).order_by("-step")
    found = steps.values_list(value, flat=True)[:MAX_STEPS]
    seconds = [one for one in found if one is not None]
    return median(seconds) if seconds else None


def _device(run_id: int) -> str:
    begun = ("run_started", "run_resumed")
    told = RunEvent.objects.filter(run=run_id, type__in=begun).order_by("-seq")
    return str(told.values_list("body__device", flat=True).first() or "")
