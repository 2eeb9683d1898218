"""How somebody wants charts drawn, for all runs. What an address says goes first."""

from __future__ import annotations

import math
import re
from urllib.parse import urlencode

from django.http import QueryDict

from dashboard.accounts.models import User
from dashboard.runs.models import ChartSettings

X_AXES = ("step", "time", "tokens", "samples")
MAX_SMOOTHING = 0.99
# "all", charts by name, or both: all but these.
CHARTS = re.compile(r"(all|[\w-]{1,130})(,[\w-]{1,130})*", re.ASCII)
MAX_LENGTH = 1_000


def read_settings(user: User) -> str:
    """As the end of an address; empty when nothing is kept."""
    kept = ChartSettings.objects.filter(user=user)
    return kept.values_list("query", flat=True).first() or ""


def keep_settings(user: User, given: QueryDict) -> str:
    """What is kept now; ValueError when it means nothing. Of nothing, nothing."""
    query = urlencode({name: _check(name, given.get(name, "")) for name in given})
    if len(query) > MAX_LENGTH:
        raise ValueError(
            f"Settings of charts may take {MAX_LENGTH:,} characters; got "
            f"{len(query):,}. Set all charts alike instead of one by one."
        )
    if query:
        ChartSettings.objects.update_or_create(user=user, defaults={"query": query})
    else:
        ChartSettings.objects.filter(user=user).delete()
    return query


def _check(name: str, value: str) -> str:
    match name:
        case "smooth" if _is_smoothing(value):
            return value
        case "x" if value in X_AXES:
            return value
        case "log" | "clip" if not value or CHARTS.fullmatch(value):
            return value
        case "tails" | "alerts" if value in ("on", "off"):
            return value
    raise ValueError(f"Charts have no setting {name[:40]!r} of {value[:80]!r}.")


def _is_smoothing(value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= MAX_SMOOTHING
