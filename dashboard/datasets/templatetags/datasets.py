from __future__ import annotations

from django import template

from dashboard.datasets.parsing.records import Record, quote

register = template.Library()


@register.filter
def shown(value: object) -> str:
    """A value on one line: a text as it is, anything else as JSON."""
    quoted = quote(value)
    return quoted[1:].removesuffix('"') if isinstance(value, str) else quoted


@register.filter
def cells(record: Record, names: list[str]) -> list[str]:
    """The record's values under these columns, as a page can show them."""
    return [
        quote(record.values[name]) if name in record.values else "" for name in names
    ]
