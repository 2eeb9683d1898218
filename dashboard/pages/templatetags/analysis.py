"""Numbers and verdicts of the audit; the compare form: `{% load analysis %}`."""

from __future__ import annotations

from django import template
from django.template import Context
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.analysis.audit.changes import FEWEST_OF_RUN
from dashboard.analysis.audit.findings import Finding
from dashboard.analysis.audit.jumps import MetricChange
from dashboard.analysis.audit.signals import Signal
from dashboard.analysis.compare.differences import title_of_setting
from dashboard.analysis.compare.selection import CompareForm, join_ids
from dashboard.pages.templatetags.runs import signed

register = template.Library()
register.filter("setting_title", title_of_setting)


@register.simple_tag(takes_context=True)
def kept(context: Context, *own: str) -> SafeString:
    """Hidden fields for all of the address but the form's own: `{% kept "x" %}`."""
    query, selection = context["request"].GET, context["selection"]
    left_out = {*own, "q"}
    names = [n for n in CompareForm.base_fields if n not in left_out and query.get(n)]
    fields = [(name, query[name]) for name in names]
    if "runs" not in own:
        fields.insert(0, ("runs", join_ids(selection.ids)))
    if "pin" not in own:
        fields += [("pin", pin) for pin in query.getlist("pin")]
    if selection.sweep:
        fields.append(("sweep", str(selection.sweep.pk)))
    return format_html_join("", '<input type="hidden" name="{}" value="{}">', fields)


@register.filter
def percent(share: float | None) -> str:
    """Three digits: 62.5%, 100%, or a dash."""
    return "\N{EN DASH}" if share is None else f"{100 * share:.3g}%"


@register.filter
def points(difference: float) -> str:
    """Write a difference of shares: +12.3 points."""
    return f"{signed(100 * difference)} points"


@register.filter
def reasons(unmeasured: list[Finding]) -> list[tuple[str, list[str]]]:
    """List why signals were not measured, each reason with their titles."""
    titles_by_reason: dict[str, list[str]] = {}
    for finding in unmeasured:
        why = finding.signal.missing
        if finding.status == "few":
            why = f"It has {finding.num_points} of the {FEWEST_OF_RUN} points needed."
        titles_by_reason.setdefault(why, []).append(finding.signal.title)
    return list(titles_by_reason.items())


@register.filter
def value_of(value: float, signal: Signal | MetricChange) -> str:
    """Three digits."""
    if signal.is_share:
        return percent(value)
    return sig3(value)


@register.filter
def difference_of(value: float, signal: Signal | MetricChange) -> str:
    """Write a difference; a share's is in percentage points."""
    return signed(100 * value if signal.is_share else value)
