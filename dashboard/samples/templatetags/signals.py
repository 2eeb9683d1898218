"""How a group's signal and signed numbers are written: `{% load signals %}`."""

from __future__ import annotations

from django import template

from dashboard.accounts.templatetags.numbers import sig4
from dashboard.samples.prompt_forms import CLASS_WORDS

register = template.Library()

WORDS = {
    "mixed": "mixed",
    "all_right": "all right",
    "all_wrong": "all wrong",
    "tied": "tied",
    "unscorable": "unscorable",
}


@register.filter
def signal_words(signal: str) -> str:
    return WORDS.get(signal, signal)


@register.filter
def kind_words(kind: str) -> str:
    """A class of prompts."""
    return CLASS_WORDS.get(kind, kind)


@register.filter
def signed(value: object) -> str:
    """+0.8123, −0.5, 0: the sign is always there, and as wide as a plus."""
    text = sig4(value)
    if text.startswith("-"):
        return "−" + text[1:]
    return text if text in {"0", "–"} else "+" + text
