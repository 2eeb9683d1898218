"""A run's header, alerts and signal charts; signed numbers: `{% load runs %}`."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import Context

from dashboard.accounts.models import Team
from dashboard.accounts.templatetags.numbers import sig4
from dashboard.alerts.queries import describe_for_page
from dashboard.runs.control import describe_loss
from dashboard.runs.models import Run, RunStar
from dashboard.runs.progress import Progress, describe_progress, seconds_left, tab_title
from dashboard.runs.queries import list_children
from dashboard.samples.models import StepRollup
from dashboard.samples.prompt_forms import CLASS_WORDS
from dashboard.samples.signals import figures
from dashboard.samples.signals.figures import SignalForm
from dashboard.samples.sparklines import signal_words
from trainer.metric_names import title_of

register = template.Library()


@register.filter
def metric_title(name: str) -> str:
    """In words, with its unit."""
    return title_of(name, with_unit=True)


@register.filter
def metric_choice(name: str) -> str:
    """Its title and its name, to pick it by."""
    title = title_of(name)
    return name if title == name else f"{title} · {name}"


@register.simple_tag
def progress_of(run: Run) -> Progress:
    return describe_progress(run)


@register.simple_tag
def children_of(run: Run) -> list[Run]:
    """What was forked or cloned from it; one query."""
    return list_children(run)


@register.simple_tag
def size_of_sweep(run: Run) -> int:
    """Of the runs that it was launched with, itself included; one query."""
    return Run.objects.filter(sweep=run.sweep_id).count()


@register.simple_tag(takes_context=True)
def is_starred(context: Context) -> bool:
    """Whether the reader gave it a star; one query."""
    user, run = context["request"].user, context["run"]
    return RunStar.objects.filter(run=run, user=user).exists()


@register.simple_tag
def loss_of(run: Run) -> str:
    """What a cancellation would lose; one query."""
    return describe_loss(run)


@register.simple_tag(takes_context=True)
def may_write(context: Context) -> bool:
    """Whether the reader may change the team's things; viewers may not."""
    team = context["team"]
    return any(m.team_id == team.id and m.can_write for m in context["memberships"])


@register.simple_tag
def alerts_of(run: Run) -> list[dict[str, Any]]:
    """None that anything is asked for, where a run never had an alert."""
    return describe_for_page(run) if run.alerts_seq else []


@register.filter
def firing(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that no one looks after yet."""
    return [a for a in alerts if a["state"] == "firing" and not a["is_muted"]]


@register.inclusion_tag("samples/signal_charts.html", takes_context=True)
def signal_charts(context: template.RequestContext, team: Team, run: Run) -> Any:
    """What a run learns from."""
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


register.filter(signal_words)
register.filter(tab_title)
register.filter(seconds_left)


@register.filter
def kind_words(kind: str) -> str:
    """A class of prompts."""
    return CLASS_WORDS.get(kind, kind)


@register.filter
def signed(value: object) -> str:
    """+0.8123, −0.5, 0: the sign is always there, and as wide as a plus."""
    text = sig4(value)
    if text.startswith("-"):
        return "−" + text[1:]
    return text if text in {"0", "–"} else "+" + text
