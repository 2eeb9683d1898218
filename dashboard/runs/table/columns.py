"""The columns of the run table: what they show, and how they sort runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.db.models import (
    Case,
    F,
    FilteredRelation,
    OrderBy,
    Q,
    QuerySet,
    When,
)
from django.db.models.functions import Lower
from django.utils.module_loading import import_string

from dashboard.accounts.templatetags.numbers import NOTHING, duration
from dashboard.runs.models import REWARD, Run, RunState, trained_seconds
from dashboard.runs.table.expressions import (
    CONFIG,
    SettingNumber,
    SettingText,
    Stat,
    share_done,
    split_metric,
    stat_of,
)
from trainer.metric_names import MAIN_SET, title_of

COST = "cost"  # which is no column of the database
MAX_COLUMNS = 40
MAX_KEY = 200


# The keys of a query, in the order of the suggestions.
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "name": "run name",
        "state": "queued, running, finished …; active, ended",
        "tag": "one of its tags",
        "owner": "user who launched it",
        "model": "starting model",
        "dataset": "training or evaluation dataset",
        "reward": "reward",
        "sweep": "sweep name",
        "notes": "text of the notes",
        "id": "run ID",
        "step": "last finished step",
        "steps": "total steps",
        "progress": "finished share of the steps, 0 to 1",
        "duration": "such as 90min, 2h or 1d",
        "created": "a date such as 2026-11-01, or an age such as 7d",
        "started": "a date such as 2026-11-01, or an age such as 7d",
        "finished": "a date such as 2026-11-01, or an age such as 7d",
        "worker": "last worker",
        "starred": "starred by you",
        "locked": "locked against changes",
        "archived": "archived",
        "trashed": "in the trash",
    }
)
# The fields behind the keys.
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "name": "name",
        "notes": "notes",
        "model": "model_label",
        "reward": "recipe_version__recipe__name",
        "worker": "worker",
    }
)
PATHS: Mapping[str, str] = MappingProxyType(
    {
        **TEXTS,
        "state": "state",
        "owner": "owner__username",
        "dataset": "dataset_version__dataset__name",
        "sweep": "sweep__name",
    }
)
NUMBERS: Mapping[str, Any] = MappingProxyType(
    {
        "id": F("pk"),
        "step": F("last_step"),
        "steps": F("num_steps"),
        "progress": share_done(),
        "duration": trained_seconds(),
    }
)
MOMENTS: Mapping[str, str] = MappingProxyType(
    {"created": "created_at", "started": "started_at", "finished": "finished_at"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`key` as in the address; `kind` selects the template of its cells."""

    key: str
    title: str
    kind: str
    note: str = ""  # after the title: the statistic of a metric
    is_number: bool = False
    metric: str = ""
    stat: Stat = "last"
    write: Callable[[Run], str] = lambda run: ""  # if no template draws it

    @property
    def setting(self) -> str:
        """The key of its setting; "" for other columns."""
        return self.key.removeprefix(CONFIG) if self.kind == "setting" else ""


def _own(
    key: str,
    title: str,
    kind: str = "",
    *,
    is_number: bool = False,
    write: Callable[[Run], str] = lambda run: "",
) -> Column:
    return Column(
        key=key, title=title, kind=kind or key, is_number=is_number, write=write
    )


OWN: Mapping[str, Column] = MappingProxyType(
    {
        column.key: column
        for column in (
            _own("state", "State"),
            _own("owner", "Owner", write=lambda run: str(run.owner or NOTHING)),
            _own("model", "Model", write=lambda run: run.model_label),
            _own("dataset", "Dataset"),
            _own("reward", "Reward"),
            _own(
                "progress",
                "Progress",
                is_number=True,
                write=lambda run: f"{run.last_step:,} of {run.num_steps:,}",
            ),
            _own(
                "duration",
                "Took",
                is_number=True,
                write=lambda run: duration(
                    # As `with_related` reads it, or a query.
                    run.trained if hasattr(run, "trained") else run.took
                ),
            ),
            _own(
                COST,
                "Cost",
                is_number=True,
                # As pages read it, of all rows at once.
                write=lambda run: getattr(run, "cost_text", "") or NOTHING,
            ),
            _own("created", "Created", "moment", is_number=True),
            _own("started", "Started", "moment", is_number=True),
            _own("finished", "Finished", "moment", is_number=True),
            _own("tags", "Tags"),
            _own("notes", "Notes", write=lambda run: run.notes or NOTHING),
            _own("sweep", "Sweep"),
            _own(
                "steps",
                "Steps",
                is_number=True,
                write=lambda run: f"{run.num_steps:,}",
            ),
            _own("worker", "Worker", write=lambda run: run.worker or NOTHING),
        )
    }
)
NAME = _own("name", "Run")  # always first
ALIASES = MappingProxyType(
    {"last": f"{REWARD}.last", "best": f"{REWARD}.best", "recipe": "reward"}
)
DEFAULT = (
    "state",
    f"{REWARD}.last",
    f"eval/{MAIN_SET}/mean.best",
    "model",
    "dataset",
    "reward",
    "owner",
    "started",
    "duration",
)
AT_WORK = (
    RunState.STARTING,
    RunState.RUNNING,
    RunState.PAUSING,
    RunState.PAUSED,
    RunState.STOPPING,
)


def find_column(key: str) -> Column | None:
    """Return None if there is no such column."""
    key = ALIASES.get(key, key)
    if key in OWN or key == NAME.key:
        return OWN.get(key, NAME)
    if key.startswith(CONFIG) and len(key) > len(CONFIG):
        return Column(
            key=key, title=key.removeprefix(CONFIG), kind="setting", is_number=True
        )
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
        title=title_of(metric).removesuffix(" (mean)"),
        note=stat,
        kind="metric",
        is_number=True,
        metric=metric,
        stat=stat,
    )


def read_columns(text: str) -> tuple[Column, ...]:
    """`cols=` of an address, without unknown columns and duplicates."""
    keys = next(csv.reader([" ".join(text[:8_000].splitlines())]), [])
    columns = {
        column.key: column
        for key in keys[:MAX_COLUMNS]
        if 0 < len(key) <= MAX_KEY and (column := find_column(key.strip()))
    }
    columns.pop(NAME.key, None)
    return tuple(columns.values()) or default_columns()


def write_columns(columns: Iterable[Column]) -> str:
    """Write them as `cols=` has them; "" for the defaults."""
    keys = [column.key for column in columns]
    if keys == list(DEFAULT):
        return ""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(keys)
    return line.getvalue()


def default_columns() -> tuple[Column, ...]:
    return tuple(column for key in DEFAULT if (column := find_column(key)))


def sort_runs(runs: QuerySet[Run], sort: str) -> QuerySet[Run]:
    """Sort by a column's key, descending after "-"; runs without a value come last."""
    # On a tie, and without an order of its own.
    newest_first = OrderBy(F("id"), descending=True)
    column = find_column(sort.removeprefix("-")) if sort else None
    if column is None:
        return runs.order_by(newest_first)
    descending = sort.startswith("-")
    if column.key == COST:
        # Costs belong to a higher layer, so their module is imported by name.
        sort_by_cost: Callable[..., QuerySet[Run]] = import_string(
            "dashboard.costs.ledger.sort_by_cost"
        )
        return sort_by_cost(runs, descending=descending)
    runs, by = _orders(runs, column)
    orders = [
        OrderBy(expression, descending=descending, nulls_last=True) for expression in by
    ]
    return runs.order_by(*orders, newest_first)


def pin_runs_at_work(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Runs that a trainer works on come first, then those in the queue in its order;
    else the newest is first.
    """
    queued = Q(state=RunState.QUEUED)
    return runs.order_by(
        Case(
            When(state__in=AT_WORK, then=0),
            When(queued & Q(on_hold=False), then=1),
            When(queued, then=2),
            default=3,
        ),
        Case(When(queued, then=-F("priority")), default=0),
        Case(When(queued, then=F("id")), default=-F("id")),
    )


def _orders(runs: QuerySet[Run], column: Column) -> tuple[QuerySet[Run], Sequence[Any]]:
    if column.kind == "setting":
        # Numbers by size, before other values.
        return runs, (SettingNumber(column.setting), SettingText(column.setting))
    if column.kind == "metric":
        joined = FilteredRelation(
            "metric_summaries", condition=Q(metric_summaries__name=column.metric)
        )
        return runs.alias(sorted=joined), (
            stat_of(column.stat, column.metric, "sorted__"),
        )
    return runs, (_order(column.key),)


def _order(key: str) -> Any:
    if key in PATHS:
        return Lower(PATHS[key])
    return NUMBERS[key] if key in NUMBERS else F(MOMENTS.get(key, key))
