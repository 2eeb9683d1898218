"""A run's charts: the page of all metrics, the curves' data, and chart settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_team
from dashboard.accounts.models import Team
from dashboard.pages.requests import Request, read_number
from dashboard.runs.charts.chart import Chart, chart_id
from dashboard.runs.charts.downsampling import POINTS_PER_BUCKET
from dashboard.runs.charts.figures import (
    Section,
    combined_charts,
    features_of_run,
    group_of_chart,
    is_filled,
    is_measured,
    keep_settings,
    metric_figure,
    notes_of,
    read_settings,
)
from dashboard.runs.charts.series import (
    ENDS,
    MAX_POINTS,
    Interval,
    is_bound,
    read_evaluated,
    read_history,
    read_tails,
)
from dashboard.runs.models import Run
from dashboard.runs.progress import describe_fork
from dashboard.runs.queries import get_run, list_ancestors
from dashboard.runs.stream import describe_tail
from trainer.metric_names import METRICS, group_names, list_titles, rank_of, title_of

MAX_METRICS = 200
BOUNDS = ("first", "last")


def chart_context(request: Request, team: Team, run: Run) -> dict[str, Any]:
    """What runs/chart_controls.html shows, and what a fork's charts begin with."""
    return {
        "kept_settings": read_settings(request.user),
        "ancestors": [_ancestor(team, *each) for each in list_ancestors(run)],
    }


def _ancestor(team: Team, run: Run, step: int) -> dict[str, Any]:
    """What charts draw grey up to the step of a fork."""
    curves = reverse("run_curves", args=[team.slug, run.id])
    fork = describe_fork(run)
    return {"name": run.name, "step": step, "curves": curves, "fork": fork}


@require_GET
def metrics(request: Request, team: str, run_id: int) -> HttpResponse:
    """?q= finds among them in the browser, as one types."""
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    combined = [c for c in combined_charts(features_of_run(run)) if is_filled(c, run)]
    context = {
        "team": team_,
        "run": run,
        "tab": "metrics",
        "sections": _sections(run, combined),
        "figures": {chart.id: chart.figure for chart in combined},
        "unmeasured": {
            chart.id for chart in combined if not is_measured(chart, metric_names(run))
        },
        "figure": metric_figure(),
        "blank": _card("…"),
        "titles": list_titles(),
        "last_values": list(_last_values(run)),
        **chart_context(request, team_, run),
    }
    return render(request, "runs/metrics.html", context)


def _sections(run: Run, combined: Sequence[Chart]) -> list[Section]:
    """By group: the charts of several metrics, then one of each other metric."""
    together = {chart.name for chart in combined}
    notes = {} if run.is_imported else notes_of(features_of_run(run))
    found: dict[str, Section] = {}
    for group in METRICS:
        charts = [chart for chart in combined if group_of_chart(chart) == group]
        if charts or notes.get(group):
            notes_here = notes.get(group, [])
            found[group] = Section(title=group, charts=charts, notes=notes_here)
    for group, names in group_names(metric_names(run)):
        section = found.setdefault(group, Section(title=group, charts=[]))
        section.charts.extend(_card(name) for name in names if name not in together)
    return sorted(found.values(), key=lambda section: _rank(section.title))


def _rank(group: str) -> tuple[int, str]:
    """The registry's groups first."""
    known = list(METRICS)
    return (known.index(group), "") if group in known else (len(known), group)


def _last_values(run: Run) -> Iterator[tuple[str, float | None, Interval | None]]:
    last: dict[str, float | None] = run.summary.get("last", {})
    for name in metric_names(run):
        yield name, last.get(name), _interval(last, name)


def _interval(last: Mapping[str, float | None], name: str) -> Interval | None:
    low, high = (last.get(f"{name}/{end}") for end in ENDS)
    return None if low is None or high is None else (low, high)


def metric_names(run: Run) -> list[str]:
    """In the order in which the browser inserts those that come later."""
    names = {*run.metric_names, *run.summary.get("last", {})}
    return sorted((name for name in names if not is_bound(name)), key=rank_of)


def _card(name: str) -> Chart:
    return Chart(
        id=chart_id(name) or name,
        name=name,
        title=title_of(name, with_unit=True),
        about=name,
        figure=metric_figure(),
    )


@gzip_page
@require_GET
def curves(request: Request, team: str, run_id: int) -> JsonResponse:
    """?metrics=a,b&first_step=&last_step=&max_points= for a closer look."""
    run_ = get_run(get_team(request, team), run_id)
    try:
        names = _metric_names(request)
        max_points = _number(request, "max_points", MAX_POINTS)
        first, last = (_number(request, f"{end}_step", None) for end in BOUNDS)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    history = read_history(
        run_,
        names,
        max_points=max(POINTS_PER_BUCKET, min(max_points or 0, 10 * MAX_POINTS)),
        first_step=first,
        last_step=last,
    )
    # A fork's chart of held-out scores begins with its parent's.
    evaluated = read_evaluated(run_, names, first_step=first, last_step=last)
    is_whole = first is None and last is None
    tails = read_tails(run_, names) if is_whole else []
    return JsonResponse(
        {
            "curves": {n: asdict(c) for n, c in (history.curves | evaluated).items()},
            "clock": asdict(history.clock),
            "width": history.width,
            "is_thinned": history.is_thinned,
            "tails": [describe_tail(tail) for tail in tails],
            # What it holds belongs to this history, up to this step.
            "attempt": run_.attempt,
            "through": run_.last_step,
        }
    )


def _metric_names(request: Request) -> list[str]:
    names = [name for name in request.GET.get("metrics", "").split(",") if name]
    if not 1 <= len(names) <= MAX_METRICS:
        raise ValueError(
            f"metrics must name 1 to {MAX_METRICS} metrics, separated by commas; got "
            f"{len(names)}."
        )
    return names


def _number(request: Request, name: str, default: int | None) -> int | None:
    text = request.GET.get(name, "")
    if not text:
        return default
    number = read_number(text)
    if number is None:
        raise ValueError(f"{name} must be a whole number; got {text!r}.")
    return number


@require_POST
def chart_settings(request: Request, team: str) -> JsonResponse:
    """Keeps how this person wants charts drawn; an empty form forgets it."""
    get_team(request, team)
    try:
        kept = keep_settings(request.user, request.POST)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse({"kept": kept})
