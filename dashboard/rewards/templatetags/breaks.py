"""Where a line may break, in texts that have no blanks: `{% load breaks %}`."""

from __future__ import annotations

from django import template
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@register.filter
def break_at_tags(text: str) -> SafeString:
    """Before and behind a tag such as <think>, never within it."""
    escaped = conditional_escape(text)
    return mark_safe(  # nosec B308, B703 # noqa: S308 - escaped above
        escaped.replace("&lt;", "<wbr>&lt;").replace("&gt;", "&gt;<wbr>")
    )


@register.filter
def break_name(name: str) -> SafeString:
    """Behind the underscores of a rule's name."""
    escaped = conditional_escape(name)
    return mark_safe(escaped.replace("_", "_<wbr>"))  # nosec B308, B703 # noqa: S308 - escaped above
