"""The run list's address: which runs, in what order, with which columns.

q      a query in the filter language (parser.py)
state, owner, model, dataset, sweep   shortcuts: one value each, added to the query
sort   a column's key, descending after "-"
cols   the columns' keys, separated by commas
by     keys to group by, separated by commas; open: expanded groups
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from django.db.models import (
    Case,
    Count,
    Exists,
    OuterRef,
    Q,
    QuerySet,
    When,
)
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Coalesce

from dashboard.accounts.models import Team, User
from dashboard.project.database import FixedQuery, read_whole
from dashboard.runs.config.snapshot import flatten_config
from dashboard.runs.models import (
    ENDED,
    EvaluationSet,
    MetricSummary,
    Run,
    RunStar,
    RunState,
    trained_seconds,
)
from dashboard.runs.queue.estimates import STEP_SECONDS
from dashboard.runs.table.columns import (
    ABOUT,
    PATHS,
    Column,
    find_column,
    read_columns,
    write_columns,
)
from dashboard.runs.table.expressions import (
    CONFIG,
    STATS,
)
from dashboard.runs.table.grouping import expression_of, write_text
from dashboard.runs.table.parser import (
    EVERYTHING,
    FLAGS,
    Node,
    QueryError,
    parse,
    quote,
)
from dashboard.runs.table.sql import ACTIVE, STATES, condition
from trainer.metric_names import better_of, title_of

GROUPABLE = ("state", "model", "dataset", "reward", "tag", "sweep", "owner")
MAX_GROUP_KEYS = 3
RECENT_RUNS = 200  # whose settings and metrics are suggested; others can be typed
MAX_VALUES = 50


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    """Unknown shortcuts and orders are ignored."""

    text: str = ""
    state: str = ""
    owner: int | None = None
    model: str = ""
    dataset: int | None = None
    sweep: int | None = None
    sort: str = ""
    columns: tuple[Column, ...] = ()
    by: tuple[str, ...] = ()

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> Self:
        state = parameters.get("state", "")
        sort = parameters.get("sort", "").replace("\x00", "")[:200]
        column = find_column(sort.removeprefix("-"))
        turned = f"{'-' * sort.startswith('-')}{column.key}" if column else ""
        by = read_group_keys(parameters.get("by", ""))
        return cls(
            text=parameters.get("q", "").strip().replace("\x00", ""),
            state=state if state in (ACTIVE, *RunState.values) else "",
            owner=read_whole(parameters.get("owner", "")),
            model=parameters.get("model", "")[:200].replace("\x00", ""),
            dataset=read_whole(parameters.get("dataset", "")),
            sweep=read_whole(
                parameters.get("sweep", "") or parameters.get("group", "")
            ),
            sort=sort if sort in ("num", "-num") else turned,
            columns=read_columns(parameters.get("cols", "").replace("\x00", "")),
            by=by,
        )

    @property
    def is_filtered(self) -> bool:
        return bool(
            self.text
            or self.state
            or self.owner
            or self.model
            or self.dataset
            or self.sweep
        )

    @property
    def written_columns(self) -> str:
        return write_columns(self.columns)

    @cached_property
    def _parsed(self) -> tuple[Node, QueryError | None]:
        try:
            return parse(self.text), None
        except QueryError as error:
            return EVERYTHING, error

    def find(self, team: Team | int, user: User | int) -> QuerySet[Run]:
        """Find the runs, unordered. QueryError if the query is invalid."""
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
            evaluated = EvaluationSet.objects.filter(
                dataset_version__dataset=self.dataset
            )
            runs = runs.filter(
                Q(dataset_version__dataset=self.dataset)
                | Q(pk__in=evaluated.values("run"))
            )
        return runs.filter(sweep_id=self.sweep) if self.sweep else runs


def read_group_keys(text: str) -> tuple[str, ...]:
    """Read at most three keys, each once."""
    keys = (key.strip() for key in text.replace("\x00", "")[:600].split(","))
    group_keys = [
        k for k in keys if k in GROUPABLE or (k.startswith(CONFIG) and k != CONFIG)
    ]
    return tuple(dict.fromkeys(group_keys))[:MAX_GROUP_KEYS]


def with_related(runs: QuerySet[Run], user: User | int) -> QuerySet[Run]:
    """Load what rows show besides their columns."""
    starred = RunStar.objects.filter(run=OuterRef("pk"), user=user)
    related = ("owner", "sweep", "locked_by", "dataset_version__dataset")
    return (
        runs.select_related(*related, "recipe_version__recipe")
        .defer("config", "metric_names", "summary", "fail_reason", "pause_reason")
        .annotate(
            is_starred=Exists(starred),
            pace=pace_of_active(),
            trained=trained_seconds(),
        )
    )


def pace_of_active() -> Case:
    """Select the latest steps' seconds, or the last step's, of runs that have not
    ended.
    """
    latest = KeyTransform("step_seconds", "summary")
    last = KeyTransform(STEP_SECONDS, KeyTransform("last", "summary"))
    return Case(When(state__in=ENDED, then=None), default=Coalesce(latest, last))


@dataclass(frozen=True, kw_only=True, slots=True)
class Facets:
    """The values that the team's runs have."""

    owners: list[tuple[int, str]]
    models: list[str]
    datasets: list[tuple[int, str]]


@FixedQuery
def _owners_models_and_datasets(team: int) -> QuerySet[Run, tuple[Any, ...]]:
    return (
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


@FixedQuery
def _evaluated_datasets(team: int) -> QuerySet[EvaluationSet, tuple[int, str]]:
    return (
        EvaluationSet.objects.filter(run__team=team)
        .values_list("dataset_version__dataset_id", "dataset_version__dataset__name")
        .distinct()
    )


def read_facets(team: Team) -> Facets:
    """Make one query over the distinct combinations, one over evaluation sets."""
    rows = _owners_models_and_datasets(team.pk)
    owners, models, datasets = {}, set(), {}
    for owner_id, owner, model, dataset_id, dataset in rows:
        if owner_id is not None:
            owners[owner_id] = owner
        models.add(model)
        if dataset_id is not None:
            datasets[dataset_id] = dataset
    datasets |= dict(_evaluated_datasets(team.pk))
    return Facets(
        owners=sorted(owners.items(), key=lambda item: item[1]),
        models=sorted(models),
        datasets=sorted(datasets.items(), key=lambda item: item[1]),
    )


NUMBERS = {
    "total": Count("pk"),
    "shown": Count("pk", filter=Q(archived_at=None, trashed_at=None)),
    "archived": Count("pk", filter=Q(archived_at__isnull=False, trashed_at=None)),
    "trashed": Count("pk", filter=Q(trashed_at__isnull=False)),
}
_numbers_of = FixedQuery(
    lambda team: (
        Run.objects.filter(team=team).order_by().values_list("team").annotate(**NUMBERS)
    )
)


def count_runs(team: Team) -> dict[str, int]:
    """Count runs by whether the list shows them; one query."""
    _, *numbers = _numbers_of.first(team.pk) or (team.pk, 0, 0, 0, 0)
    return dict(zip(NUMBERS, numbers, strict=True))


def list_keys(team: Team) -> dict[str, Any]:
    """Two queries over the team's newest runs."""
    newest = Run.objects.kept().filter(team=team).order_by("-pk")
    recent = Run.objects.filter(pk__in=newest.values("pk")[:RECENT_RUNS])
    values: dict[str, set[str]] = {}
    for config in recent.values_list("config", flat=True):
        for key, value in flatten_config(config):
            values.setdefault(key, set()).add(repr(value))
    # Settings that differ between the runs come first.
    keys = sorted(values, key=lambda key: (len(values[key]) < 2, key))
    names = (
        MetricSummary.objects.filter(run__in=recent.values("pk"))
        .order_by("name")
        .values_list("name", flat=True)
        .distinct()
    )
    return {
        "keys": [{"key": key, "about": about} for key, about in ABOUT.items()],
        "flags": list(FLAGS),
        "settings": [
            {"key": f"{CONFIG}{key}", "num_values": len(values[key])} for key in keys
        ],
        "metrics": [
            {
                "metric": name,
                "title": title_of(name),
                "stats": [stat for stat in STATS if stat != "best" or better_of(name)],
            }
            for name in names
        ],
        "num_runs": RECENT_RUNS,
    }


def list_values(team: Team, key: str) -> list[str]:
    """List the most common values of a key, as a query writes them; at most one
    query.
    """
    if key == "state":
        return list(STATES)
    is_setting = key.startswith(CONFIG) and key != CONFIG
    if not (is_setting or key == "tag" or key in PATHS):
        return []
    runs = Run.objects.kept().filter(team=team).order_by()
    values = runs.annotate(value=expression_of(key)).values_list("value", flat=True)
    counted = Counter(value for value in values if value not in (None, ""))
    return [
        quote(write_text(value) if is_setting else value)
        for value, _ in counted.most_common(MAX_VALUES)
    ]
