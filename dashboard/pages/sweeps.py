"""The sweep page."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Team
from dashboard.analysis.compare.selection import join_ids, read_selection
from dashboard.analysis.compare.series import list_metrics
from dashboard.analysis.sweeps.axes import Axis, AxisRange
from dashboard.analysis.sweeps.importance import KINDS, MAX_SETTINGS, read_outcomes
from dashboard.analysis.sweeps.summary import (
    MAX_SWEPT,
    SweepForm,
    SweepSummary,
    read_sweep,
)
from dashboard.pages.requests import Request
from dashboard.runs.charts.chart import NOTE, has_clipped
from trainer.metric_names import title_of

MAX_COMPARED = 10  # as the compare page does


@require_safe
@look_up(get_membership)
def sweep(request: Request, team: Team) -> HttpResponse:
    """Runs by their settings: parallel coordinates, a scatter, and importance."""
    selection = read_selection(team, request.GET, most=MAX_SWEPT)
    form = SweepForm.read(request.GET)
    context: dict[str, Any] = {
        "team": team,
        "selection": selection,
        "view": {name: form.value(name) for name in form.fields},
        "form": form,
        "kinds": KINDS,
        "max_swept": MAX_SWEPT,
        "max_settings": MAX_SETTINGS,
        "without": request.GET.getlist("without"),
    }
    if selection.runs:
        metric, kind = form.value("metric"), form.value("of")
        outcomes = read_outcomes(selection.runs, metric, kind)
        # The ranges of the address, and the one typed into the form.
        ranges = request.GET.getlist("keep")
        key, low, high = (
            request.GET.get(f"keep_{part}", "").strip()
            for part in ("axis", "from", "to")
        )
        summary = read_sweep(
            selection.runs,
            outcomes,
            title=f"{title_of(metric, with_unit=True)}, {dict(KINDS)[kind]}",
            x=form.value("x") or "",
            without=request.GET.getlist("without"),
            keep=[*ranges, f"{key}:{low}..{high}"] if low or high else ranges,
        )
        best = [line.run.pk for line in summary.lines if line.is_kept][:MAX_COMPARED]
        context |= {
            "sweep": summary,
            "kept": [_chip(summary, chosen, request.GET) for chosen in summary.kept],
            "kept_words": [str(axis_range) for axis_range in summary.kept],
            "compared": join_ids(best),
            "num_compared": len(best),
        }
        context["metrics"] = list_metrics(selection.runs, shown=metric)
        values = [value for value in outcomes.values() if value is not None]
        context["note"] = NOTE if has_clipped(values) else ""
    return render(request, "sweeps/sweep.html", context)


def _chip(
    summary: SweepSummary, axis_range: AxisRange, query: QueryDict
) -> dict[str, str]:
    axis = next(axis for axis in summary.axes if axis.key == axis_range.key)
    remaining = query.copy()
    for name in ("keep_axis", "keep_from", "keep_to"):
        remaining.pop(name, None)
    remaining.setlist(
        "keep", [str(other) for other in summary.kept if other is not axis_range]
    )
    return {"words": _say(axis, axis_range), "query": f"?{remaining.urlencode()}"}


def _say(axis: Axis, axis_range: AxisRange) -> str:
    if axis.texts is None:
        return f"{axis.key} from {axis_range.low:.4g} to {axis_range.high:.4g}"
    inside = [
        text
        for place, text in enumerate(axis.texts)
        if axis_range.low <= place <= axis_range.high
    ]
    return f"{axis.key}: {', '.join(inside) or 'none'}"
