"""How the audit's numbers are written: `{% load audits %}`."""

from __future__ import annotations

from django import template

from dashboard.accounts.templatetags.numbers import sig4
from dashboard.insights.audit.findings import Finding
from dashboard.insights.audit.signals import Signal
from dashboard.insights.templatetags.shares import percent
from dashboard.samples.templatetags.signals import signed

register = template.Library()

STATUS_WORDS = {
    "suspect": "look at it",
    "otherwise": "changed otherwise",
    "steady": "no clear change",
    "few": "too few points",
    "aside": "nothing on one side",
    "missing": "not measured",
}


@register.filter
def status_words(finding: Finding) -> str:
    return STATUS_WORDS[finding.status]


@register.filter
def value_of(value: float, signal: Signal) -> str:
    return percent(value) if signal.is_share else sig4(value)


@register.filter
def difference_of(value: float, signal: Signal) -> str:
    """A share's is in percentage points."""
    return signed(100 * value if signal.is_share else value)


@register.filter
def chance_words(chance: float | None) -> str:
    """As a share of 1: < 0.001, 0.02, 0.4."""
    if chance is None:
        return "\N{EN DASH}"
    return "< 0.001" if chance < 0.001 else f"{chance:.2g}"
