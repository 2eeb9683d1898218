"""The sweep page."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
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
def sweep(request: Request, team: str) -> HttpResponse:
    """Runs by their settings: parallel coordinates, a scatter, and importance."""
    team_ = get_team(request, team)
    selection = read_selection(team_, request.GET, most=MAX_SWEPT)
    form = SweepForm.read(request.GET)
    context: dict[str, Any] = {
        "team": team_,
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
        found = read_sweep(
            selection.runs,
            outcomes,
            title=f"{title_of(metric, with_unit=True)}, {dict(KINDS)[kind]}",
            x=form.value("x") or "",
            without=request.GET.getlist("without"),
            keep=_keeps(request.GET),
        )
        best = [line.run.pk for line in found.lines if line.is_kept][:MAX_COMPARED]
        context |= {
            "sweep": found,
            "kept": [_chip(found, kept, request.GET) for kept in found.kept],
            "kept_words": [str(kept) for kept in found.kept],
            "compared": join_ids(best),
            "num_compared": len(best),
        }
        context["metrics"] = list_metrics(selection.runs, shown=metric)
        known = [value for value in outcomes.values() if value is not None]
        context["note"] = NOTE if has_clipped(known) else ""
    return render(request, "sweeps/sweep.html", context)


def _keeps(query: QueryDict) -> list[str]:
    """The ranges of the address, and the one typed into the form."""
    kept = query.getlist("keep")
    key, low, high = (
        query.get(f"keep_{part}", "").strip() for part in ("axis", "from", "to")
    )
    return [*kept, f"{key}:{low}..{high}"] if low or high else kept


def _chip(found: SweepSummary, kept: AxisRange, query: QueryDict) -> dict[str, str]:
    axis = next(axis for axis in found.axes if axis.key == kept.key)
    return {"words": _say(axis, kept), "query": _without(query, found.kept, kept)}


def _say(axis: Axis, kept: AxisRange) -> str:
    if axis.texts is None:
        low, high = f"{kept.low:.4g}", f"{kept.high:.4g}"
    else:
        inside = [
            text
            for place, text in enumerate(axis.texts)
            if kept.low <= place <= kept.high
        ]
        return f"{axis.key}: {', '.join(inside) or 'none'}"
    return f"{axis.key} from {low} to {high}"


def _without(query: QueryDict, all_kept: list[AxisRange], kept: AxisRange) -> str:
    left = query.copy()
    for name in ("keep_axis", "keep_from", "keep_to"):
        left.pop(name, None)
    left.setlist("keep", [str(one) for one in all_kept if one is not kept])
    return f"?{left.urlencode()}"
