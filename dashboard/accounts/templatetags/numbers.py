"""How numbers and times are written on every page: `{% load numbers %}`."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever a template holds
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


@register.filter
def sig3(value: object) -> str:
    """Three significant digits, whole above: 0.812, 12.3, 12,346, 1e-6, −0.5."""
    number = _number(value)
    if number is None:
        return NOTHING
    if number == 0:
        return "0"
    if 999.5 <= abs(number) < 1_000_000:
        text = f"{number:,.0f}"
    elif 1e-4 <= abs(number) < 1_000_000:
        text = f"{number:.3g}"
    else:
        mantissa, exponent = f"{number:.2e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", MINUS, 1) if number < 0 else text


@register.filter
def exact(value: object) -> str:
    """Write all digits, for the tooltip of a number that is written with three."""
    number = _number(value)
    return NOTHING if number is None else repr(number)


@register.filter(name="with_margin")
def write_with_margin(value: float, margin: float | None) -> str:
    """Write a value with the digits of its margin.

    >>> write_with_margin(0.6902, 0.0578), write_with_margin(0.6902, None)
    ('0.69 ± 0.06', '0.69')
    """
    if not margin or not math.isfinite(margin):
        return sig3(value)
    digits = max(0, -math.floor(math.log10(float(f"{margin:.0e}"))))
    text = f"{value:,.{digits}f} ± {margin:,.{digits}f}"
    return text.replace("-", MINUS)


@register.filter
def si(value: object) -> str:
    """Counts: 950, 12.3k, 4.56M."""
    number = _number(value)
    if number is None:
        return NOTHING
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,999 rounds to 1M, not to 1000k.
        if abs(number) >= factor * 0.9995:
            return f"{number / factor:.3g}{suffix}"
    return f"{number:.4g}"


@register.filter(name="bytes")
def num_bytes(value: object) -> str:
    """Memory, files and traffic: 900 B, 1.5 KiB, 1,000 MiB, 4 GiB."""
    number = _number(value)
    if number is None:
        return NOTHING
    for factor, suffix in BINARY:
        # 1,048,575 rounds to 1 MiB, not to 1,024 KiB.
        if abs(number) >= factor * 0.9995:
            number /= factor
            size = f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"
            return f"{size} {suffix}"
    return f"{number:,.0f} B"


@register.filter
def duration(value: object) -> str:
    """Seconds or a timedelta: 850 ms, 12.3 s, 3 min 20 s, 1 h 04 min, 2 d 3 h."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    seconds = _number(value)
    if seconds is None or seconds < 0:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


@register.filter
def ago(value: datetime | None) -> str | SafeString:
    """Write how long ago it was, with the time itself as the title; shell.js keeps it
    true.
    """
    if value is None:
        return NOTHING
    moment = value.astimezone(UTC)
    seconds = (timezone.now() - value).total_seconds()
    return format_html(
        '<time datetime="{}" title="{}" data-ago="">{}</time>',
        moment.isoformat(timespec="seconds"),
        f"{moment:%Y-%m-%d %H:%M:%S} UTC",
        f"{rounded(seconds)} ago" if seconds >= 60 else "just now",
    )


def rounded(seconds: float) -> str:
    """Down to a whole unit, the largest: 40 min."""
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    length, unit = next((step for step in units if seconds >= step[0]), units[-1])
    return f"{int(seconds // length)} {unit}"
