"""What the run list's address asks for: which runs, in what order, with which columns.

q      a query in the filter language (syntax.py)
state, owner, model, dataset, group   shortcuts: one value each, added to the query
sort   a column's key, "-" before it from the top
cols   the columns' keys, with commas between
by     keys to group by, with commas between; open: groups that are unfolded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from django.db.models import Exists, OuterRef, Q, QuerySet

from dashboard.accounts.models import Team, User
from dashboard.runs.models import ENDED, EvaluationSet, Run, RunStar, RunState
from dashboard.runs.table.columns import (
    Column,
    find_column,
    read_columns,
    sort_runs,
    write_columns,
)
from dashboard.runs.table.conditions import condition
from dashboard.runs.table.keys import CONFIG
from dashboard.runs.table.named import ACTIVE
from dashboard.runs.table.syntax import parse
from dashboard.runs.table.tree import EVERYTHING, Node, QueryError

GROUPABLE = ("state", "model", "dataset", "reward", "tag", "sweep", "owner")
MAX_GROUP_KEYS = 3


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """Of the shortcuts and the order, what is not understood is left out."""

    text: str = ""
    state: str = ""
    owner: int | None = None
    model: str = ""
    dataset: int | None = None
    group: int | None = None
    sort: str = ""
    columns: tuple[Column, ...] = ()
    by: tuple[str, ...] = ()

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> Self:
        state = parameters.get("state", "")
        sort = parameters.get("sort", "").replace("\x00", "")[:200]
        column = find_column(sort.removeprefix("-"))
        turned = "-" if sort.startswith("-") else ""
        by = read_group_keys(parameters.get("by", ""))
        return cls(
            text=parameters.get("q", "").strip().replace("\x00", ""),
            state=state if state in (ACTIVE, *RunState.values) else "",
            owner=_positive(parameters.get("owner", "")),
            model=parameters.get("model", "")[:200].replace("\x00", ""),
            dataset=_positive(parameters.get("dataset", "")),
            group=_positive(parameters.get("group", "")),
            sort=sort if sort in ("num", "-num") else _sort(turned, column),
            columns=read_columns(parameters.get("cols", "").replace("\x00", "")),
            by=by,
        )

    @property
    def is_filtered(self) -> bool:
        values = (self.text, self.state, self.owner, self.model, self.dataset)
        return any((*values, self.group))

    @property
    def written_columns(self) -> str:
        return write_columns(self.columns)

    @cached_property
    def _parsed(self) -> tuple[Node, QueryError | None]:
        try:
            return parse(self.text), None
        except QueryError as error:
            return EVERYTHING, error

    def find(self, team: Team, user: User) -> QuerySet[Run]:
        """The runs, in no order. QueryError says what the query cannot mean."""
        tree, error = self._parsed
        if error:
            raise error
        runs = Run.objects.filter(condition(tree, user), team=team)
        if self.state == ACTIVE:
            runs = runs.exclude(state__in=ENDED)
        elif self.state:
            runs = runs.filter(state=self.state)
        if self.owner:
            runs = runs.filter(owner_id=self.owner)
        if self.model:
            runs = runs.filter(model_label=self.model)
        if self.dataset:
            runs = runs.filter(_uses(self.dataset))
        return runs.filter(group_id=self.group) if self.group else runs


def _sort(turned: str, column: Column | None) -> str:
    return f"{turned}{column.key}" if column else ""


def read_group_keys(text: str) -> tuple[str, ...]:
    """At most three keys, each once."""
    keys = (key.strip() for key in text.replace("\x00", "")[:600].split(","))
    known = [
        k for k in keys if k in GROUPABLE or (k.startswith(CONFIG) and k != CONFIG)
    ]
    return tuple(dict.fromkeys(known))[:MAX_GROUP_KEYS]


def _positive(text: str) -> int | None:
    # Above this, PostgreSQL has no such number.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _uses(dataset_id: int) -> Q:
    """To train on it, or to be evaluated on it."""
    evaluated = EvaluationSet.objects.filter(dataset_version__dataset=dataset_id)
    return Q(dataset_version__dataset=dataset_id) | Q(pk__in=evaluated.values("run"))


def with_related(runs: QuerySet[Run], user: User) -> QuerySet[Run]:
    """What rows show beside their columns."""
    starred = RunStar.objects.filter(run=OuterRef("pk"), user=user)
    related = ("owner", "group", "locked_by", "dataset_version__dataset")
    return (
        runs.select_related(*related, "recipe_version__recipe")
        .defer("config", "metric_names", "summary", "fail_reason", "pause_reason")
        .annotate(is_starred=Exists(starred))
    )


def list_runs(team: Team, user: User, query: ListQuery) -> QuerySet[Run]:
    return sort_runs(with_related(query.find(team, user), user), query.sort)
