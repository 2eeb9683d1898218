"""What the header on every run page shows: `{% load run_header %}`."""

from __future__ import annotations

from django import template
from django.template import Context

from dashboard.runs.control import describe_loss
from dashboard.runs.models import Run, RunStar
from dashboard.runs.progress import Progress, describe_progress
from dashboard.runs.queries import list_children

register = template.Library()


@register.simple_tag
def progress_of(run: Run) -> Progress:
    return describe_progress(run)


@register.simple_tag
def children_of(run: Run) -> list[Run]:
    """What was forked or cloned from it; one query."""
    return list_children(run)


@register.simple_tag
def size_of_group(run: Run) -> int:
    """Of the runs that it was launched with, itself included; one query."""
    return Run.objects.filter(group=run.group_id).count()


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
