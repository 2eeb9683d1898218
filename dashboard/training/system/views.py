from __future__ import annotations

import math

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.training.models import SystemSample, Worker
from dashboard.training.system_metrics import METRICS
from dashboard.training.system_samples import (
    CHARTS,
    Axis,
    Window,
    as_columns,
    read_points,
)


@require_safe
def run_system(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    lives = list(run.epochs.order_by("number"))
    machines = _machines([life.worker for life in lives])
    last = machines.get(lives[-1].worker) if lives else None
    context = {
        "team": team_,
        "run": run,
        "tab": "system",
        "lives": [(life, machines.get(life.worker)) for life in lives],
        "has_samples": SystemSample.objects.filter(run=run).exists(),
        "has_gpus": bool(last and last.hardware.get("gpus")) or _has_gpus(run),
        "charts": CHARTS,
        "figures": {chart.id: chart.figure for chart in CHARTS},
        "axis": _axis(request),
    }
    return render(request, "training/system.html", context)


@require_safe
def system_samples(request: HttpRequest, team: str, run_id: int) -> JsonResponse:
    """?x=time|step&first=&last= for a closer look, &after=<time> for what is new."""
    run = get_run(get_team(request, team), run_id)
    try:
        window = Window(
            axis=_axis(request),
            first=_number(request, "first"),
            last=_number(request, "last"),
        )
        after = _number(request, "after")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    points = read_points(run.id, window, after=after)
    return JsonResponse({"has_ended": run.has_ended, **as_columns(points)})


def _has_gpus(run: Run) -> bool:
    last = SystemSample.objects.filter(run=run).order_by("-id").first()
    return last is not None and len(last.values) > len(METRICS)


def _machines(names: list[str]) -> dict[str, Worker]:
    return {worker.name: worker for worker in Worker.objects.filter(name__in=names)}


def _axis(request: HttpRequest) -> Axis:
    return "step" if request.GET.get("x") == "step" else "time"


def _number(request: HttpRequest, name: str) -> float | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise ValueError(f"{name} must be a number from 0 on; got {text[:40]!r}.")
    return value
