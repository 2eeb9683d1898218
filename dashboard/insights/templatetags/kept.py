"""What a form leaves as it is in the address: `{% kept "metric" "x" %}`."""

from __future__ import annotations

from django import template
from django.template import Context
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from dashboard.insights.forms import CompareForm
from dashboard.insights.selection import join_ids

register = template.Library()


@register.simple_tag(takes_context=True)
def kept(context: Context, *own: str) -> SafeString:
    """Hidden fields for all of the address but what the form asks for itself."""
    query, selection = context["request"].GET, context["selection"]
    left_out = {*own, "q"}
    names = [n for n in CompareForm.base_fields if n not in left_out and query.get(n)]
    fields = [(name, query[name]) for name in names]
    if "runs" not in own:
        fields.insert(0, ("runs", join_ids(selection.ids)))
    if selection.group:
        fields.append(("group", str(selection.group.pk)))
    return format_html_join("", '<input type="hidden" name="{}" value="{}">', fields)
