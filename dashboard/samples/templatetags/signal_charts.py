"""`{% signal_charts team run %}`: what a run learns from, on its overview."""

from __future__ import annotations

from typing import Any

from django import template

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from dashboard.samples.models import StepRollup
from dashboard.samples.signals import figures
from dashboard.samples.signals.figures import SignalForm

register = template.Library()


@register.inclusion_tag("samples/signal_charts.html", takes_context=True)
def signal_charts(context: template.RequestContext, team: Team, run: Run) -> Any:
    charts = figures.signal_charts()
    form = SignalForm.read(context.request.GET)
    known = StepRollup.objects.filter(run=run, superseded_by=None)
    return {
        "team": team,
        "run": run,
        "form": form,
        "rows": form.value("rows"),
        "charts": charts,
        "figures": {chart.id: chart.figure for chart in charts},
        "is_older": run.last_step > 0 and not known.exists(),
    }
