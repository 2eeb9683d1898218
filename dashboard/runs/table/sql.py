"""What of a run can be compared, sorted and grouped by, as SQL expressions."""

from __future__ import annotations

from typing import Any, Literal, get_args

from django.db.models import (
    BooleanField,
    F,
    FloatField,
    Func,
    JSONField,
    TextField,
    Value,
)
from django.db.models.expressions import Combinable

from dashboard.runs.charts.direction import direction_of
from dashboard.runs.config.flat import json_path

Stat = Literal["last", "best", "min", "max", "mean"]
STATS: tuple[Stat, ...] = get_args(Stat)


class IsTrue(Func):
    """A condition that is never NULL, so that `not` turns it round for every run."""

    template = "((%(expressions)s) IS TRUE)"
    output_field = BooleanField()


class _Setting(Func):
    # Silent: a run that lacks the setting has none, which is no error.
    template = "jsonb_path_query_first(%(expressions)s::jsonpath, '{}', true)"
    arity = 2

    def __init__(self, key: str, condition: str = "", **extra: Any) -> None:
        # Strict: a list of numbers is not its first number.
        path = f"strict {json_path(key)}{condition}"
        super().__init__(F("config"), Value(path), **extra)


class SettingNumber(_Setting):
    template = f"({_Setting.template})::float8"
    output_field = FloatField()

    def __init__(self, key: str, **extra: Any) -> None:
        super().__init__(key, ' ? (@.type() == "number")', **extra)


class SettingText(_Setting):
    """NULL for one that is none as for one that is not there."""

    template = f"({_Setting.template} #>> '{{}}')"
    output_field = TextField()


class SettingValue(_Setting):
    output_field = JSONField()


def stat_of(stat: Stat, metric: str, prefix: str = "") -> Combinable:
    """Over MetricSummary; ValueError where the metric has no best."""
    if stat == "best":
        stat = extreme_of(metric)
    if stat == "mean":
        return F(f"{prefix}total") / F(f"{prefix}num")
    return F(prefix + {"last": "last", "min": "low", "max": "high"}[stat])


def extreme_of(metric: str) -> Literal["min", "max"]:
    direction = direction_of(metric)
    if direction is None:
        raise ValueError(
            f"Of {metric} neither more nor less is better, so it has no best. Use "
            f"{metric}.max or {metric}.min."
        )
    return "max" if direction == "higher" else "min"


def split_metric(key: str) -> tuple[str, Stat] | None:
    """`reward/mean.last` in its parts; a metric with a slash may stand alone: its last.

    >>> split_metric("reward/mean"), split_metric("name")
    (('reward/mean', 'last'), None)
    """
    metric, dot, stat = key.rpartition(".")
    if dot and metric and stat in STATS:
        return metric, stat
    return (key, "last") if "/" in key else None
