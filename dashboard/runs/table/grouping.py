"""Runs grouped by equal settings, with counts and mean metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import (
    Aggregate,
    Avg,
    Count,
    F,
    FilteredRelation,
    Max,
    Min,
    OrderBy,
    Q,
    QuerySet,
)

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.project.schema_forms import write_number
from dashboard.runs.models import Run
from dashboard.runs.table.columns import PATHS, Column
from dashboard.runs.table.expressions import (
    CONFIG,
    SettingNumber,
    SettingText,
    Tags,
    stat_of,
)
from dashboard.runs.table.parser import quote
from dashboard.runs.table.rows import Row
from trainer.metric_names import better_of

ROWS_IN_A_GROUP = 20  # shown in an open group; a link lists all
MAX_OPEN = 20
JSON_WORDS = {"true": "yes", "false": "no"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """The mean of a column over the group's runs that have a value."""

    column: Column
    text: str = ""
    note: str = ""


@dataclass(kw_only=True, slots=True)
class GroupedRuns:
    keys: tuple[str, ...]
    values: tuple[str | None, ...]
    num_runs: int
    averages: list[Average]
    is_open: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def token(self) -> str:
        """The values as `open=` has them."""
        return json.dumps(self.values, ensure_ascii=False, separators=(",", ":"))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Key and value, as displayed."""
        return [
            (key.removeprefix(CONFIG), _shown(value, key))
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    @property
    def label(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.parts)

    def query(self, text: str) -> str:
        """Write a query for the group, within the current one."""
        terms = [
            f"{key}:{'none' if value is None else quote(_shown(value, key))}"
            for key, value in zip(self.keys, self.values, strict=True)
        ]
        return " ".join([*([f"({text})"] if text else []), *terms])


def group_runs(
    runs: QuerySet[Run], keys: Sequence[str], columns: Sequence[Column], sort: str
) -> QuerySet[Run, dict[str, Any]]:
    """Select a row of values for each group; one query."""
    names = [f"key_{i}" for i in range(len(keys))]
    metrics = [column for column in columns if column.metric]
    joined = {
        f"metric_{i}": FilteredRelation(
            "metric_summaries", condition=Q(metric_summaries__name=column.metric)
        )
        for i, column in enumerate(metrics)
    }
    averages: dict[str, Aggregate] = {}
    for i, column in enumerate(metrics):
        value = stat_of(column.stat, column.metric, f"metric_{i}__")
        averages[f"mean_{i}"] = Avg(value)
        averages[f"low_{i}"], averages[f"high_{i}"] = Min(value), Max(value)
        averages[f"num_{i}"] = Count(value)
    grouped: QuerySet[Run, dict[str, Any]] = (
        runs.order_by()
        .annotate(**dict(zip(names, map(expression_of, keys), strict=True)))
        .alias(**joined)
        .values(*names)
        .annotate(
            num_runs=Count("pk"),
            **{
                f"{name}_number": Min(SettingNumber(key.removeprefix(CONFIG)))
                for key, name in zip(keys, names, strict=True)
                if key.startswith(CONFIG)
            },
            **averages,
            **_settings(columns, keys),
        )
    )
    ordered: QuerySet[Run, dict[str, Any]] = grouped.order_by(
        *_orders(keys, names, metrics, sort)
    )
    return ordered


def count_groups(runs: QuerySet[Run], keys: Sequence[str]) -> int:
    names = {f"key_{i}": expression_of(key) for i, key in enumerate(keys)}
    count: int = runs.order_by().annotate(**names).values(*names).distinct().count()
    return count


def expression_of(key: str) -> Any:
    if key == "tag":
        return Tags(F("tags"))
    if key.startswith(CONFIG):
        return SettingText(key.removeprefix(CONFIG))
    return F(PATHS[key])


def _settings(columns: Sequence[Column], keys: Sequence[str]) -> dict[str, Aggregate]:
    """Columns that are not group keys: number of different values, and the only one."""
    aggregates: dict[str, Aggregate] = {}
    for place, column in enumerate(columns):
        if column.setting and column.key not in keys:
            text = SettingText(column.setting)
            aggregates[f"different_{place}"] = Count(text, distinct=True)
            aggregates[f"only_{place}"] = Min(text)
            aggregates[f"having_{place}"] = Count(text)
    return aggregates


def _orders(
    keys: Sequence[str], names: Sequence[str], metrics: Sequence[Column], sort: str
) -> list[OrderBy]:
    """Order as requested; then by the keys, numbers by size."""
    descending = sort.startswith("-")
    chosen = {column.key: f"mean_{i}" for i, column in enumerate(metrics)}.get(
        sort.removeprefix("-")
    )
    orders = []
    if sort in ("num", "-num"):
        orders = [OrderBy(F("num_runs"), descending=descending)]
    elif chosen:
        orders = [OrderBy(F(chosen), descending=descending, nulls_last=True)]
    for key, name in zip(keys, names, strict=True):
        if key.startswith(CONFIG):
            orders.append(OrderBy(F(f"{name}_number"), nulls_last=True))
        orders.append(OrderBy(F(name), nulls_last=True))
    return orders


def runs_of(runs: QuerySet[Run], group: GroupedRuns) -> QuerySet[Run]:
    """Runs of a group. Case matters here, as in the grouping."""
    for i, (key, value) in enumerate(zip(group.keys, group.values, strict=True)):
        if key == "tag":
            own = Q(tags=[]) if value is None else Q(tags__contains=[value])
            runs = runs.filter(own)
        else:
            name = f"group_key_{i}"
            own = Q(**({f"{name}__isnull": True} if value is None else {name: value}))
            runs = runs.alias(**{name: expression_of(key)}).filter(own)
    return runs


def _shown(value: str | None, key: str) -> str:
    if value is None:
        return "none"
    return write_text(value) if key.startswith(CONFIG) else value


def read_group(
    row: dict[str, Any], keys: Sequence[str], columns: Sequence[Column]
) -> GroupedRuns:
    metrics = [column for column in columns if column.metric]
    values = tuple(row[f"key_{i}"] for i in range(len(keys)))
    own = dict(zip(keys, values, strict=True))
    return GroupedRuns(
        keys=tuple(keys),
        values=values,
        num_runs=row["num_runs"],
        averages=[
            _average(row, i, column, metrics, own) for i, column in enumerate(columns)
        ],
    )


def _average(
    row: dict[str, Any],
    place: int,
    column: Column,
    metrics: Sequence[Column],
    own: dict[str, str | None],
) -> Average:
    if column.metric:
        return _of_metric(row, metrics.index(column), column)
    if column.key in own:
        return Average(column=column, text=_shown(own[column.key], column.key))
    if column.setting and row[f"having_{place}"]:
        different = row[f"different_{place}"]
        if different == 1:
            return Average(column=column, text=write_text(row[f"only_{place}"]))
        return Average(column=column, note=f"{different:,} values")
    return Average(column=column)


def write_text(text: str) -> str:
    """Write a setting's value as pages show it, from its JSON text."""
    try:
        return write_number(float(text))
    except ValueError:
        return JSON_WORDS.get(text, text)


def _of_metric(row: dict[str, Any], place: int, column: Column) -> Average:
    """Show the mean, and the best value, or the range if no direction is better."""
    num = row[f"num_{place}"]
    if not num:
        return Average(column=column, note="n 0")
    low, high = sig3(row[f"low_{place}"]), sig3(row[f"high_{place}"])
    direction = better_of(column.metric)
    ends = f"best {high if direction == 'higher' else low}"
    if direction is None:
        ends = f"{low} to {high}"
    return Average(
        column=column, text=sig3(row[f"mean_{place}"]), note=f"{ends}, n {num:,}"
    )


def read_open(tokens: Sequence[str], num_keys: int) -> set[tuple[str | None, ...]]:
    groups = set()
    for token in tokens[:MAX_OPEN]:
        try:
            values = json.loads(token[:4_000])
        except (ValueError, RecursionError):
            continue
        if isinstance(values, list) and len(values) == num_keys:
            groups.add(tuple(v if v is None else str(v) for v in values))
    return groups
