"""SQL expressions by which runs are compared, sorted and grouped."""

from __future__ import annotations

from typing import Any, Literal, get_args

from django.db.models import (
    BooleanField,
    F,
    FloatField,
    Func,
    JSONField,
    TextField,
)
from django.db.models import Value as SqlValue
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, NullIf

from dashboard.project.errors import UserError
from dashboard.runs.config.snapshot import json_path
from trainer.metric_names import better_of

CONFIG = "config."  # before the key of a setting
Stat = Literal["last", "best", "min", "max", "mean"]
STATS: tuple[Stat, ...] = get_args(Stat)


def share_done() -> Combinable:
    return Cast("last_step", FloatField()) / NullIf(
        Cast("num_steps", FloatField()), 0.0
    )


class IsTrue(Func):
    """A condition that is never NULL, so that `not` inverts it for every run."""

    template = "((%(expressions)s) IS TRUE)"
    output_field = BooleanField()


class IsNone(IsTrue):
    template = "((%(expressions)s) IS NULL)"


class _Setting(Func):
    # Silent: a missing setting is NULL, not an error.
    template = "jsonb_path_query_first(%(expressions)s::jsonpath, '{}', true)"
    arity = 2

    def __init__(self, key: str, condition: str = "", **extra: Any) -> None:
        # Strict: a list does not match by its first number.
        path = f"strict {json_path(key)}{condition}"
        super().__init__(F("config"), SqlValue(path), **extra)


class SettingNumber(_Setting):
    template = f"({_Setting.template})::float8"
    output_field = FloatField()

    def __init__(self, key: str, **extra: Any) -> None:
        super().__init__(key, ' ? (@.type() == "number")', **extra)


class SettingText(_Setting):
    """NULL if it is none or missing."""

    template = f"({_Setting.template} #>> '{{}}')"
    output_field = TextField()


class SettingValue(_Setting):
    output_field = JSONField()


def stat_of(stat: Stat, metric: str, prefix: str = "") -> Combinable:
    """Over MetricSummary; UserError if the metric has no best value."""
    if stat == "best":
        stat = extreme_of(metric)
    if stat == "mean":
        return F(f"{prefix}total") / F(f"{prefix}num")
    return F(prefix + {"last": "last", "min": "low", "max": "high"}[stat])


def extreme_of(metric: str) -> Literal["min", "max"]:
    direction = better_of(metric)
    if direction is None:
        raise UserError(
            "runs.no_best_value",
            f"{metric} has no better direction, so it has no best value. Use "
            f"{metric}.max or {metric}.min.",
        )
    return "max" if direction == "higher" else "min"


def split_metric(key: str) -> tuple[str, Stat] | None:
    """`reward/mean.last` in its parts; a name with a slash alone means its last value.

    >>> split_metric("reward/mean"), split_metric("name")
    (('reward/mean', 'last'), None)
    """
    metric, dot, stat = key.rpartition(".")
    if dot and metric and stat in STATS:
        return metric, stat
    return (key, "last") if "/" in key else None


class Tags(Func):
    """A row for each tag of a run, and one for a run without tags."""

    template = "unnest(coalesce(nullif(%(expressions)s, '{}'), ARRAY[NULL::varchar]))"
    output_field = TextField()
    set_returning = True


class JoinedTags(Func):
    """A run's tags in one text, separated by a character that no tag contains."""

    template = "array_to_string(%(expressions)s, chr(10))"
    output_field = TextField()

    def __init__(self, **extra: Any) -> None:
        super().__init__(F("tags"), **extra)
