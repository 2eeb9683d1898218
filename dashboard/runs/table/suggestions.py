"""What the search offers while somebody types: keys, then values of a key."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast

from dashboard.accounts.models import Team
from dashboard.runs.charts.direction import direction_of
from dashboard.runs.config.flat import flatten_config
from dashboard.runs.models import MetricSummary, Run
from dashboard.runs.table.group_rows import write_text
from dashboard.runs.table.grouping import PATHS, Tags
from dashboard.runs.table.keys import ABOUT, CONFIG, TEXTS
from dashboard.runs.table.named import STATES
from dashboard.runs.table.sql import STATS, SettingText
from dashboard.runs.table.tree import FLAGS, quote

RECENT_RUNS = 200  # whose settings and metrics are offered; others can be typed
MAX_VALUES = 50


def list_keys(team: Team) -> dict[str, Any]:
    """Two queries over the team's newest runs."""
    recent = _recent(team)
    return {
        "keys": [{"key": key, "about": about} for key, about in ABOUT.items()],
        "flags": list(FLAGS),
        "settings": _settings(recent),
        "metrics": _metrics(recent),
        "num_runs": RECENT_RUNS,
    }


def _recent(team: Team) -> QuerySet[Run]:
    newest = Run.objects.kept().filter(team=team).order_by("-pk")
    return Run.objects.filter(pk__in=newest.values("pk")[:RECENT_RUNS])


def _settings(runs: QuerySet[Run]) -> list[dict[str, Any]]:
    """Those in which the runs differ come first."""
    values: dict[str, set[str]] = {}
    for config in runs.values_list("config", flat=True):
        for key, value in flatten_config(config):
            values.setdefault(key, set()).add(repr(value))
    keys = sorted(values, key=lambda key: (len(values[key]) < 2, key))
    return [{"key": f"{CONFIG}{key}", "num_values": len(values[key])} for key in keys]


def _metrics(runs: QuerySet[Run]) -> list[dict[str, Any]]:
    names = MetricSummary.objects.filter(run__in=runs.values("pk"))
    found = names.order_by("name").values_list("name", flat=True).distinct()
    return [{"metric": name, "stats": _stats(name)} for name in found]


def _stats(name: str) -> list[str]:
    return [stat for stat in STATS if stat != "best" or direction_of(name)]


def list_values(team: Team, key: str) -> list[str]:
    """The commonest values of a key, as a query writes them; one query at most."""
    if key == "state":
        return list(STATES)
    runs = Run.objects.kept().filter(team=team).order_by()
    expression = _expression(key)
    if expression is None:
        return []
    rows = runs.annotate(value=expression).values_list("value", flat=True)
    counted = Counter(value for value in rows if value not in (None, ""))
    common = (value for value, _ in counted.most_common(MAX_VALUES))
    is_setting = key.startswith(CONFIG)
    return [quote(write_text(value) if is_setting else value) for value in common]


def _expression(key: str) -> Any:
    if key == "tag":
        return Tags(F("tags"))
    if key.startswith(CONFIG) and key != CONFIG:
        return SettingText(key.removeprefix(CONFIG))
    path = PATHS.get(key) or TEXTS.get(key)
    return Cast(F(path), TextField()) if path else None
