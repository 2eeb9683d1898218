"""The alerts on every page of a run: `{% load run_alerts %}`."""

from __future__ import annotations

from typing import Any

from django import template

from dashboard.alerts.queries import describe_for_page
from dashboard.runs.models import Run

register = template.Library()


@register.simple_tag
def alerts_of(run: Run) -> list[dict[str, Any]]:
    """None that anything is asked for, where a run never had an alert."""
    return describe_for_page(run) if run.alerts_seq else []


@register.filter
def firing(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that nobody looks after yet."""
    return [a for a in alerts if a["state"] == "firing" and not a["is_muted"]]
