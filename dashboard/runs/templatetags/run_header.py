"""What the header on every run page shows: `{% load run_header %}`."""

from __future__ import annotations

from django import template
from django.template import Context

from dashboard.runs.error_shares import common_share
from dashboard.runs.models import Run
from dashboard.runs.progress import Progress, describe_progress

register = template.Library()


@register.simple_tag
def progress_of(run: Run) -> Progress:
    return describe_progress(run)


@register.simple_tag
def errors_allowed(run: Run) -> float | str:
    """Empty where phases differ, so that a resume leaves each its own."""
    share = common_share(run.config)
    return "" if share is None else share


@register.simple_tag(takes_context=True)
def may_write(context: Context) -> bool:
    """Whether the reader may change the team's things; viewers may not."""
    team = context["team"]
    return any(m.team_id == team.id and m.can_write for m in context["memberships"])
