"""Runs in groups of equal settings: how many each has, and what they came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    Aggregate,
    Avg,
    Count,
    F,
    FilteredRelation,
    Func,
    Max,
    Min,
    OrderBy,
    Q,
    QuerySet,
    TextField,
)
from django.db.models.functions import Coalesce

from dashboard.accounts.models import Team
from dashboard.runs.models import EvaluationSet, Run
from dashboard.runs.table.columns import Column
from dashboard.runs.table.expressions import CONFIG
from dashboard.runs.table.rows import GroupedRuns
from dashboard.runs.table.sql import SettingNumber, SettingText, stat_of

PATHS = {
    "state": "state",
    "owner": "owner__username",
    "model": "model_label",
    "dataset": "dataset_version__dataset__name",
    "reward": "recipe_version__recipe__name",
    "sweep": "sweep__name",
}
ROWS_IN_A_GROUP = 20  # of an unfolded one; a link leads to all


class Tags(Func):
    """A row for each of a run's tags, and one for a run that has none."""

    template = "unnest(coalesce(nullif(%(expressions)s, '{}'), ARRAY[NULL::varchar]))"
    output_field = TextField()
    set_returning = True


def group_runs(
    runs: QuerySet[Run], keys: Sequence[str], columns: Sequence[Column], sort: str
) -> QuerySet[Run, dict[str, Any]]:
    """A row of values for each group; one query."""
    names = [f"key_{i}" for i in range(len(keys))]
    metrics = [column for column in columns if column.metric]
    joined = {
        f"metric_{i}": FilteredRelation(
            "metric_summaries", condition=Q(metric_summaries__name=column.metric)
        )
        for i, column in enumerate(metrics)
    }
    grouped: QuerySet[Run, dict[str, Any]] = (
        runs.order_by()
        .annotate(**dict(zip(names, map(_expression, keys), strict=True)))
        .alias(**joined)
        .values(*names)
        .annotate(
            num_runs=Count("pk"),
            **_sizes(keys, names),
            **_metrics(metrics),
            **_settings(columns, keys),
        )
    )
    orders = _orders(keys, names, metrics, sort)
    ordered: QuerySet[Run, dict[str, Any]] = grouped.order_by(*orders)
    return ordered


def count_groups(runs: QuerySet[Run], keys: Sequence[str]) -> int:
    names = {f"key_{i}": _expression(key) for i, key in enumerate(keys)}
    different = runs.order_by().annotate(**names).values(*names).distinct()
    count: int = different.count()
    return count


def _expression(key: str) -> Any:
    if key == "tag":
        return Tags(F("tags"))
    if key.startswith(CONFIG):
        return SettingText(key.removeprefix(CONFIG))
    return F(PATHS[key])


def _sizes(keys: Sequence[str], names: Sequence[str]) -> dict[str, Aggregate]:
    """What groups of equal settings are put in order by, where these are numbers."""
    return {
        f"{name}_number": Min(SettingNumber(key.removeprefix(CONFIG)))
        for key, name in zip(keys, names, strict=True)
        if key.startswith(CONFIG)
    }


def _metrics(metrics: Sequence[Column]) -> dict[str, Aggregate]:
    found: dict[str, Aggregate] = {}
    for i, column in enumerate(metrics):
        value = stat_of(column.stat, column.metric, f"metric_{i}__")
        found[f"mean_{i}"] = Avg(value)
        found[f"low_{i}"], found[f"high_{i}"] = Min(value), Max(value)
        found[f"num_{i}"] = Count(value)
    return found


def _settings(columns: Sequence[Column], keys: Sequence[str]) -> dict[str, Aggregate]:
    """Of a key there is one value in a group; others are read of each run."""
    found: dict[str, Aggregate] = {}
    for place, column in enumerate(columns):
        if column.setting and column.key not in keys:
            text = SettingText(column.setting)
            found[f"different_{place}"] = Count(text, distinct=True)
            found[f"only_{place}"] = Min(text)
            found[f"having_{place}"] = Count(text)
    return found


def _orders(
    keys: Sequence[str], names: Sequence[str], metrics: Sequence[Column], sort: str
) -> list[OrderBy]:
    """As asked; then by the keys, numbers by size."""
    descending = sort.startswith("-")
    by = {column.key: f"mean_{i}" for i, column in enumerate(metrics)}
    chosen = by.get(sort.removeprefix("-"))
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
    """Those of a group, exactly: case counts here, as it does in grouping."""
    for i, (key, value) in enumerate(zip(group.keys, group.values, strict=True)):
        if key == "tag":
            own = Q(tags=[]) if value is None else Q(tags__contains=[value])
            runs = runs.filter(own)
        else:
            name = f"group_key_{i}"
            own = Q(**({f"{name}__isnull": True} if value is None else {name: value}))
            runs = runs.alias(**{name: _expression(key)}).filter(own)
    return runs


# What the shortcuts beside the search can choose from.


@dataclass(frozen=True, kw_only=True, slots=True)
class Facets:
    """Whatever the team's runs have."""

    owners: list[tuple[int, str]]
    models: list[str]
    datasets: list[tuple[int, str]]


def read_facets(team: Team) -> Facets:
    """One query over the distinct combinations, one over evaluation sets."""
    rows = (
        Run.objects.kept()
        .filter(team=team)
        .order_by()
        .values_list(
            "owner_id",
            Coalesce("owner__username", "owner__display_name"),
            "model_label",
            "dataset_version__dataset_id",
            "dataset_version__dataset__name",
        )
        .distinct()
    )
    owners, models, datasets = {}, set(), {}
    for owner_id, owner, model, dataset_id, dataset in rows:
        if owner_id is not None:
            owners[owner_id] = owner
        models.add(model)
        if dataset_id is not None:
            datasets[dataset_id] = dataset
    evaluated = EvaluationSet.objects.filter(run__team=team).values_list(
        "dataset_version__dataset_id", "dataset_version__dataset__name"
    )
    datasets |= dict(evaluated.distinct())
    return Facets(
        owners=sorted(owners.items(), key=lambda item: item[1]),
        models=sorted(models),
        datasets=sorted(datasets.items(), key=lambda item: item[1]),
    )


def count_put_away(team: Team) -> dict[str, int]:
    """Archived runs and runs in the trash; one query."""
    found: dict[str, int] = Run.objects.filter(team=team).aggregate(
        total=Count("pk"),
        archived=Count("pk", filter=Q(archived_at__isnull=False, trashed_at=None)),
        trashed=Count("pk", filter=Q(trashed_at__isnull=False)),
    )
    return found
