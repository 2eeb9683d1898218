from __future__ import annotations

from django import template

register = template.Library()


@register.filter
def percent(share: float | None) -> str:
    """Three digits: 62.5 %, 100 %, or nothing to tell."""
    return "\N{EN DASH}" if share is None else f"{100 * share:.3g} %"
