"""The columns that a run list can have, and how it is sorted by each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.db.models import F, FilteredRelation, OrderBy, Q, QuerySet
from django.db.models.functions import Lower

from dashboard.runs.models import REWARD, Run
from dashboard.runs.table.expressions import CONFIG, elapsed_seconds, share_done
from dashboard.runs.table.sql import (
    SettingNumber,
    SettingText,
    Stat,
    split_metric,
    stat_of,
)

MAX_COLUMNS = 40
MAX_KEY = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`key` as the address has it; `kind` says how a cell of it is drawn."""

    key: str
    title: str
    kind: str
    note: str = ""  # behind the title: which number of a metric
    is_number: bool = False
    metric: str = ""
    stat: Stat = "last"

    @property
    def setting(self) -> str:
        """The key of the setting that it shows; "" for other columns."""
        return self.key.removeprefix(CONFIG) if self.kind == "setting" else ""


def _own(key: str, title: str, kind: str = "", *, is_number: bool = False) -> Column:
    return Column(key=key, title=title, kind=kind or key, is_number=is_number)


OWN: Mapping[str, Column] = MappingProxyType(
    {
        column.key: column
        for column in (
            _own("state", "State"),
            _own("owner", "Owner"),
            _own("model", "Model"),
            _own("dataset", "Dataset"),
            _own("reward", "Reward"),
            _own("progress", "Progress", is_number=True),
            _own("duration", "Duration", is_number=True),
            _own("created", "Created", "moment", is_number=True),
            _own("started", "Started", "moment", is_number=True),
            _own("finished", "Finished", "moment", is_number=True),
            _own("tags", "Tags"),
            _own("notes", "Notes"),
            _own("sweep", "Launched with"),
            _own("steps", "Steps", is_number=True),
            _own("worker", "Worker"),
        )
    }
)
NAME = _own("name", "Run")  # always there, and first
ALIASES = MappingProxyType(
    {"last": f"{REWARD}.last", "best": f"{REWARD}.best", "recipe": "reward"}
)
ORDERS: Mapping[str, Any] = MappingProxyType(
    {
        "name": Lower("name"),
        "state": F("state"),
        "owner": Lower("owner__username"),
        "model": Lower("model_label"),
        "dataset": Lower("dataset_version__dataset__name"),
        "reward": Lower("recipe_version__recipe__name"),
        "progress": share_done(),
        "duration": elapsed_seconds(),
        "created": F("created_at"),
        "started": F("started_at"),
        "finished": F("finished_at"),
        "tags": F("tags"),
        "notes": Lower("notes"),
        "sweep": Lower("sweep__name"),
        "steps": F("num_steps"),
        "worker": Lower("worker"),
    }
)
DEFAULT = (
    "state",
    "owner",
    "model",
    "dataset",
    "reward",
    "progress",
    f"{REWARD}.last",
    f"{REWARD}.best",
    "started",
    "duration",
)


def find_column(key: str) -> Column | None:
    """None for what names no column."""
    key = ALIASES.get(key, key)
    if key in OWN or key == NAME.key:
        return OWN.get(key, NAME)
    if key.startswith(CONFIG) and len(key) > len(CONFIG):
        title = key.removeprefix(CONFIG)
        return Column(key=key, title=title, kind="setting", is_number=True)
    parts = split_metric(key)
    if parts is None:
        return None
    metric, stat = parts
    try:
        stat_of(stat, metric)
    except ValueError:
        return None
    return Column(
        key=f"{metric}.{stat}",
        title=metric,
        note=stat,
        kind="metric",
        is_number=True,
        metric=metric,
        stat=stat,
    )


def read_columns(text: str) -> tuple[Column, ...]:
    """`cols=` of an address; what names no column is left out, so is a second time."""
    line = " ".join(text[:8_000].splitlines())
    keys = next(csv.reader([line]), [])
    found = {
        column.key: column
        for key in keys[:MAX_COLUMNS]
        if 0 < len(key) <= MAX_KEY and (column := find_column(key.strip()))
    }
    found.pop(NAME.key, None)
    return tuple(found.values()) or default_columns()


def write_columns(columns: Iterable[Column]) -> str:
    """As `cols=` has them; "" for the usual ones."""
    keys = [column.key for column in columns]
    if keys == list(DEFAULT):
        return ""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(keys)
    return line.getvalue()


def default_columns() -> tuple[Column, ...]:
    return tuple(column for key in DEFAULT if (column := find_column(key)))


def sort_runs(runs: QuerySet[Run], sort: str) -> QuerySet[Run]:
    """By a column's key, "-" before it from the top; runs without a value come last."""
    newest_first = OrderBy(F("id"), descending=True)
    column = find_column(sort.removeprefix("-")) if sort else None
    if column is None:
        return runs.order_by(newest_first)
    descending = sort.startswith("-")
    runs, by = _orders(runs, column)
    orders = [OrderBy(one, descending=descending, nulls_last=True) for one in by]
    return runs.order_by(*orders, newest_first)


def _orders(runs: QuerySet[Run], column: Column) -> tuple[QuerySet[Run], Sequence[Any]]:
    if column.kind == "setting":
        # Numbers by size, ahead of what is none.
        return runs, (SettingNumber(column.setting), SettingText(column.setting))
    if column.kind == "metric":
        named = Q(metric_summaries__name=column.metric)
        joined = FilteredRelation("metric_summaries", condition=named)
        return runs.alias(sorted=joined), (
            stat_of(column.stat, column.metric, "sorted__"),
        )
    return runs, (ORDERS[column.key],)
