from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.rewards.sandboxes import sandbox_here
from dashboard.runs.directory import run_directory
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.training.models import Worker
from dashboard.training.tail import read_tail
from dashboard.training.workers import GONE_AFTER, describe_workers

LINES = (200, 1_000, 5_000)
SOURCES = {"trainer": "Trainer", "supervisor": "Worker"}


@require_safe
def workers(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    recent = Worker.objects.filter(last_seen__gt=timezone.now() - timedelta(days=7))
    context = {
        "team": team_,
        "workers": describe_workers(recent, team=team_),
        "gone_after_seconds": int(GONE_AFTER.total_seconds()),
        "sandbox": sandbox_here(),
        "num_queued": Run.objects.filter(team=team_, state="queued").count(),
    }
    return render(request, "training/workers.html", context)


@require_safe
def run_logs(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    epochs = list(run.epochs.order_by("number"))
    epoch = _chosen(request, "epoch", [e.number for e in epochs], default=-1)
    lines = _chosen(request, "lines", LINES, default=0)
    source = _source(request)
    context = {
        "team": team_,
        "run": run,
        "tab": "logs",
        "epochs": epochs,
        "epoch": epoch,
        "lines": lines,
        "line_choices": LINES,
        "source": source,
        "sources": SOURCES,
        "tail": read_tail(_log_path(run, epoch or 0, source), max_lines=lines or 0),
    }
    return render(request, "training/logs.html", context)


@require_safe
def download_log(request: HttpRequest, team: str, run_id: int) -> FileResponse:
    run = get_run(get_team(request, team), run_id)
    numbers = list(run.epochs.order_by("number").values_list("number", flat=True))
    epoch = _chosen(request, "epoch", numbers, default=-1)
    source = _source(request)
    path = _log_path(run, epoch or 0, source)
    if not path.is_file():
        raise Http404("This log has not been written yet.")
    return FileResponse(
        path.open("rb"),
        as_attachment=True,
        filename=f"run-{run.id}-epoch-{epoch}-{source}.log",
        content_type="text/plain; charset=utf-8",
    )


def _chosen(
    request: HttpRequest, name: str, allowed: list[int] | tuple[int, ...], default: int
) -> int | None:
    value = request.GET.get(name, "")
    if (
        value.isascii()
        and value.isdigit()
        and len(value) < 10
        and int(value) in allowed
    ):
        return int(value)
    return allowed[default] if allowed else None


def _source(request: HttpRequest) -> str:
    value = request.GET.get("source", "trainer")
    return value if value in SOURCES else "trainer"


def _log_path(run: Run, epoch: int, source: str) -> Path:
    directory = run_directory(run.id).epoch(epoch)
    return directory.trainer_log if source == "trainer" else directory.supervisor_log
