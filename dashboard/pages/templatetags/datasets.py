"""Values of rows, and where texts without blanks may break: `{% load datasets %}`."""

from __future__ import annotations

import json

from django import template
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe

from dashboard.datasets.parsing.records import Record, quote
from trainer.rewards.rule import tool_calls

register = template.Library()
register.filter(tool_calls)


@register.filter
def is_list(value: object) -> bool:
    return isinstance(value, list)


@register.filter
def break_at_tags(text: str) -> SafeString:
    """Before and behind a tag such as <think>, never within it."""
    escaped = conditional_escape(text)
    return mark_safe(  # nosec B308, B703 # noqa: S308 - escaped above
        escaped.replace("&lt;", "<wbr>&lt;").replace("&gt;", "&gt;<wbr>")
    )


@register.filter
def break_name(name: str) -> SafeString:
    """Allow a line break behind the underscores of a rule's name."""
    escaped = conditional_escape(name)
    return mark_safe(escaped.replace("_", "_<wbr>"))  # nosec B308, B703 # noqa: S308 - escaped above


@register.filter
def shown(value: object) -> str:
    """Write a value on one line: a text as it is, anything else as JSON."""
    quoted = quote(value)
    return quoted[1:].removesuffix('"') if isinstance(value, str) else quoted


@register.filter
def in_full(value: object) -> str:
    """Write a text as it is, anything else as JSON on several lines."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2)


@register.filter
def cells(record: Record, names: list[str]) -> list[str]:
    """List the record's values under these columns, as a page can show them."""
    return [
        quote(record.values[name]) if name in record.values else "" for name in names
    ]
