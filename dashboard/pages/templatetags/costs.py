"""Costs and what was used, as pages write them: `{% load costs %}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from django import template

from dashboard.accounts.templatetags.numbers import si
from dashboard.costs.ledger import Bill, write_money

register = template.Library()
WORDS = {
    "calls": "calls",
    "from_file": "reused answers",
    "input_tokens": "input tokens",
    "cached_tokens": "cached input tokens",
    "output_tokens": "output tokens",
    "calls_without_usage": "calls with unknown tokens",
}


@register.filter
def money(costs: Mapping[str, float]) -> str:
    """Write costs by currency, which are never added."""
    return " + ".join(write_money(cost, name) for name, cost in sorted(costs.items()))


@register.filter
def amounts(bill: Bill) -> Iterator[str]:
    """Yield hours, tokens and calls in words."""
    if bill.hours_text:
        yield bill.hours_text
    for name, words in WORDS.items():
        if bill.amounts.get(name):
            yield f"{si(bill.amounts[name])} {words}"
