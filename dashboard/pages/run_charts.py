"""A run's charts: the page Metrics, the data of curves and machine, chart settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from django.http import HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.completions.models import StepRollup
from dashboard.completions.signals.figures import (
    SignalChart,
    SignalForm,
    signal_charts,
)
from dashboard.completions.signals.signal_map import IDLE, seen_rewards
from dashboard.pages.requests import Request, query_number
from dashboard.project.errors import or_404
from dashboard.runs.charts.chart import Chart, ChartFeatures, chart_id
from dashboard.runs.charts.figures import (
    combined_charts,
    features_of_run,
    group_of_chart,
    is_filled,
    is_measured,
    keep_settings,
    metric_figure,
    notes_of,
    pin_metric,
    pinned_metrics,
    read_settings,
)
from dashboard.runs.charts.series import (
    ENDS,
    MAX_POINTS,
    POINTS_PER_BUCKET,
    Curve,
    Interval,
    is_bound,
    read_evaluated,
    read_history,
    read_tails,
)
from dashboard.runs.models import Run, SavedView, ViewPage
from dashboard.runs.progress import describe_fork
from dashboard.runs.queries import get_run, list_ancestors, where_it_runs
from dashboard.runs.stream import describe_tail
from dashboard.runs.table.saved_views import (
    NOT_SAVED,
    find_default,
    list_views,
)
from dashboard.supervision.models import SystemSample, Worker
from dashboard.supervision.ranks import PHASES, newest_step, read_ranks
from dashboard.supervision.system_metrics import METRICS as SYSTEM_METRICS
from dashboard.supervision.system_samples import (
    CHARTS,
    Axis,
    Window,
    as_columns,
    read_points,
)
from trainer.config import RunConfig
from trainer.metric_names import METRICS, group_names, list_titles, rank_of, title_of

MAX_METRICS = 200


def chart_context(request: Request, team: Team, run: Run) -> dict[str, Any]:
    """Describe the chart controls, and what a fork's charts begin with."""
    return {
        "kept_settings": read_settings(request.user),
        # Their curves are drawn grey up to the step of a fork.
        "ancestors": [
            {
                "name": ancestor.name,
                "step": step,
                "curves": reverse("run_curves", args=[team.slug, ancestor.id]),
                "fork": describe_fork(ancestor),
            }
            for ancestor, step in list_ancestors(run)
        ],
    }


def read_features(run: Run, config: RunConfig | None = None) -> ChartFeatures:
    """Rewards that were seen limit the band of a run without percentiles."""
    features = features_of_run(run, config)
    if features.has_percentiles or features.limits:
        return features
    return replace(features, limits=seen_rewards(run))


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A metric in the list: its chart's id, and its last value."""

    id: str
    name: str
    title: str
    last: float | None
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricGroup:
    title: str
    charts: list[Chart] = field(default_factory=list)  # of several metrics
    signals: list[SignalChart] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # why a chart is not there


@require_GET
@look_up(get_membership, run=get_run)
def metrics(request: Request, team: Team, run: Run) -> HttpResponse:
    """?q= finds, ?show= chooses charts in order, and ?view=values shows the table.

    ?board= is the board that ?show= comes from; alone, it opens the board.
    """
    boards = list_views(team, request.user, ViewPage.METRICS)
    if board := _find_board(request.GET, boards):
        address = request.GET.copy()  # the range of steps stays
        for name, values in QueryDict(board.query).lists():
            address.setlist(name, values)
        address["board"] = board.code
        return redirect(f"{request.path}?{address.urlencode(safe=',')}")
    features, names = read_features(run), metric_names(run)
    combined = [chart for chart in combined_charts(features) if is_filled(chart, run)]
    items = {item.name: item for item in _items(run, names)}
    notes = {} if run.is_imported else notes_of(features)
    form = SignalForm.read(request.GET)
    signals = signal_charts(has_environment=IDLE in names)
    rollups = StepRollup.objects.filter(run=run, superseded_by=None)
    # Charts of several metrics first, then one of each other metric.
    # The chart of the reward draws its percentiles.
    together = {*(chart.name for chart in combined), "reward/p10", "reward/p90"}
    groups: dict[str, MetricGroup] = {}
    for title in METRICS:
        group = MetricGroup(
            title=title,
            charts=[chart for chart in combined if group_of_chart(chart) == title],
            signals=[chart for chart in signals if chart.group == title],
            notes=notes.get(title, []),
        )
        if group.charts or group.signals or group.notes:
            groups[title] = group
    for title, own in group_names(name for name in items if name not in together):
        group = groups.setdefault(title, MetricGroup(title=title))
        group.items.extend(items[name] for name in own)
    context = {
        "team": team,
        "run": run,
        "tab": "metrics",
        "groups": sorted(groups.values(), key=lambda group: _rank(group.title)),
        "pinned": pinned_metrics(team),
        "views": boards,
        "view": {view.code: view for view in boards}.get(request.GET.get("board", "")),
        "address": request.GET.urlencode(),
        "not_saved": " ".join(NOT_SAVED[ViewPage.METRICS]),
        "figures": {chart.id: chart.figure for chart in combined},
        "unmeasured": {c.id for c in combined if not is_measured(c, names)},
        "figure": metric_figure(),
        "blank": Chart(id="…", name="…", title="…", about="…", figure=metric_figure()),
        "titles": [(n, _title(run, n), *more) for n, _, *more in list_titles()],
        "values": list(items.values()),
        "signal_form": form,
        "signal_figures": {chart.id: chart.figure for chart in signals},
        "is_older": run.last_step > 0 and not rollups.exists(),
        **_machine(request, run),
        **chart_context(request, team, run),
    }
    return render(request, "runs/metrics.html", context)


def _find_board(query: QueryDict, boards: list[SavedView]) -> SavedView | None:
    """Find the board that an address names without its charts, or the default."""
    if not query:
        return find_default(boards)
    code = query.get("board")
    if not code or query.get("show"):
        return None
    board = next((board for board in boards if board.code == code), None)
    return or_404(board, "Board not found.")


def _rank(group: str) -> tuple[int, str]:
    """Rank the registry's groups first."""
    titles = list(METRICS)
    return (titles.index(group), "") if group in titles else (len(titles), group)


def _items(run: Run, names: Iterable[str]) -> Iterator[Item]:
    last: dict[str, float | None] = run.summary.get("last", {})
    for name in names:
        low, high = (last.get(f"{name}/{end}") for end in ENDS)
        yield Item(
            id=chart_id(name) or name,
            name=name,
            title=_title(run, name),
            last=last.get(name),
            interval=None if low is None or high is None else (low, high),
        )


def _title(run: Run, name: str) -> str:
    """Write a title; it names means over several steps, as the loss in TRL's log."""
    reported = run.config.get("settings", {})
    num = reported.get("logging_steps", 1)
    if name != "loss" or run.source.get("tools") != ["TRL"] or num == 1:
        return title_of(name, with_unit=True)
    is_known = reported.get("logging_strategy", "steps") == "steps"
    span = num if is_known and isinstance(num, int) else "logged"
    return f"Loss (mean of the last {span} steps)"


def metric_names(run: Run) -> list[str]:
    """List metrics in the order in which the browser inserts those that come later."""
    names = {*run.metric_names, *run.summary.get("last", {})}
    return sorted((name for name in names if not is_bound(name)), key=rank_of)


@gzip_page
@require_GET
@look_up(get_membership, run=get_run)
def curves(request: Request, run: Run) -> JsonResponse:
    """?metrics=a,b&first_step=&last_step=&max_points= for a closer look."""
    try:
        names = [name for name in request.GET.get("metrics", "").split(",") if name]
        if not 1 <= len(names) <= MAX_METRICS:
            raise ValueError(
                f"metrics must name 1 to {MAX_METRICS} metrics, separated by commas; "
                f"got {len(names)}."
            )
        max_points = query_number(request, "max_points", MAX_POINTS)
        first, last = (
            query_number(request, f"{end}_step") for end in ("first", "last")
        )
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    history = read_history(
        run,
        names,
        max_points=max(POINTS_PER_BUCKET, min(max_points or 0, 10 * MAX_POINTS)),
        first_step=first,
        last_step=last,
    )
    # A fork's chart of held-out scores begins with its parent's.
    held_out = read_evaluated([run], names, within=(first, last))[run.pk]
    evaluated = {name: Curve.of(series) for name, series in held_out.items()}
    is_whole = first is None and last is None
    tails = read_tails(run, names) if is_whole else []
    return JsonResponse(
        {
            "curves": {n: asdict(c) for n, c in (history.curves | evaluated).items()},
            "clock": asdict(history.clock),
            "width": history.width,
            "is_thinned": history.is_thinned,
            "tails": [describe_tail(tail) for tail in tails],
            # What it holds belongs to this history, up to this step.
            "attempt": run.attempt,
            "through": run.last_step,
        }
    )


@require_POST
@look_up(get_membership)
def chart_settings(request: Request) -> JsonResponse:
    """Keeps how this person wants charts drawn; an empty form forgets it."""
    try:
        settings_ = keep_settings(request.user, request.POST)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse({"kept": settings_})


@require_POST
@look_up(get_writing_membership)
def metric_pin(request: Request, team: Team) -> JsonResponse:
    """Pins a metric for the team, or with `off` unpins it."""
    try:
        names = pin_metric(
            team, request.POST.get("name", ""), is_pinned="off" not in request.POST
        )
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse({"names": names})


# The machine of a run.


def _machine(request: Request, run: Run) -> dict[str, Any]:
    attempts = list(run.attempts.order_by("number"))
    machines = {
        worker.name: worker
        for worker in Worker.objects.filter(
            name__in=[attempt.worker for attempt in attempts]
        )
    }
    last = machines.get(attempts[-1].worker) if attempts else None
    device, engine = where_it_runs(run)
    newest = SystemSample.objects.filter(run=run).order_by("-id").first()
    return {
        "attempts": [(attempt, machines.get(attempt.worker)) for attempt in attempts],
        "device": device,
        "engine": engine,
        "has_samples": newest is not None,
        "has_gpus": bool(last and last.hardware.get("gpus"))
        or (newest is not None and len(newest.values) > len(SYSTEM_METRICS)),
        "machine_charts": CHARTS,
        "machine_figures": {chart.id: chart.figure for chart in CHARTS},
        "axis": _axis(request.GET.get("machine", "")),
        "on_cluster": run.config.get("distributed", {}).get("where") == "ray",
        **_ranks(run),
    }


@require_GET
@look_up(get_membership, run=get_run)
def run_ranks(request: Request, team: Team, run: Run) -> HttpResponse:
    """Show the table of the run's processes; empty if it has one."""
    context = {"team": team, "run": run, **_ranks(run)}
    return render(request, "supervision/ranks.html", context)


def _ranks(run: Run) -> dict[str, Any]:
    ranks = read_ranks(run)
    return {
        "ranks": ranks,
        "phase_titles": PHASES.values(),
        "has_gpu_ranks": bool(ranks and any(r.device != "cpu" for r in ranks.rows)),
    }


@require_GET
@look_up(get_membership, run=get_run)
def system_samples(request: Request, run: Run) -> JsonResponse:
    """?x=time|step&first=&last= zoom in, &after=<time> for newer points."""
    try:
        window = Window(
            axis=_axis(request.GET.get("x", "")),
            first=_decimal(request, "first"),
            last=_decimal(request, "last"),
        )
        after = _decimal(request, "after")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    points = read_points(run.id, window, after=after)
    return JsonResponse(
        {
            "has_ended": run.has_ended,
            "ranks_step": newest_step(run),
            **as_columns(points),
        }
    )


def _axis(text: str) -> Axis:
    return "step" if text == "step" else "time"


def _decimal(request: Request, name: str) -> float | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise ValueError(f"{name} must be a number of at least 0; got {text[:40]!r}.")
    return value
