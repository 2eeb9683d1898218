"""The run list: what the address asks for, found and put in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from django.db.models import F, FloatField, OrderBy, Q, QuerySet
from django.db.models.expressions import Expression
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Lower, Now
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.models import ENDED, REWARD, EvaluationSet, Run, RunState

ACTIVE = "active"  # every state that has not ended


def _summary(part: str) -> Expression:
    """A number of the summary; JSON's null and a missing one are both NULL."""
    value = KeyTextTransform(REWARD, KeyTransform(part, "summary"))
    return Cast(value, FloatField())


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    order: Expression | F
    is_number: bool = False


COLUMNS = (
    Column("name", "Run", Lower("name")),
    Column("state", "State", F("state")),
    Column("owner", "Owner", Lower("owner__username")),
    Column("model", "Model", Lower("model_label")),
    Column("dataset", "Dataset", Lower("dataset_version__dataset__name")),
    Column("recipe", "Reward", Lower("recipe_version__recipe__name")),
    Column("progress", "Progress", F("last_step") * 1.0 / F("num_steps"), True),
    Column("last", "Last reward", _summary("last"), True),
    Column("best", "Best reward", _summary("best"), True),
    Column("started", "Started", F("started_at"), True),
    Column(
        "duration", "Duration", Coalesce("finished_at", Now()) - F("started_at"), True
    ),
)
_ORDERS = {column.key: column.order for column in COLUMNS}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListQuery:
    """The filters and the order in the address; what is not understood is left out."""

    text: str = ""
    state: str = ""
    owner: int | None = None
    model: str = ""
    dataset: int | None = None
    group: int | None = None
    sort: str = ""

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> Self:
        state = parameters.get("state", "")
        sort = parameters.get("sort", "")
        return cls(
            text=parameters.get("q", "").strip()[:200].replace("\x00", ""),
            state=state if state in (ACTIVE, *RunState.values) else "",
            owner=_positive(parameters.get("owner", "")),
            model=parameters.get("model", "")[:200].replace("\x00", ""),
            dataset=_positive(parameters.get("dataset", "")),
            group=_positive(parameters.get("group", "")),
            sort=sort if sort.removeprefix("-") in _ORDERS else "",
        )

    @property
    def is_filtered(self) -> bool:
        values = (self.text, self.state, self.owner, self.model, self.dataset)
        return any((*values, self.group))

    def filter(self, runs: QuerySet[Run]) -> QuerySet[Run]:
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
        if self.group:
            runs = runs.filter(group_id=self.group)
        return runs.filter(_mentions(self.text)) if self.text else runs

    def order(self) -> tuple[OrderBy, ...]:
        newest_first = OrderBy(F("id"), descending=True)
        if not self.sort:
            return (newest_first,)
        by = _ORDERS[self.sort.removeprefix("-")]
        descending = self.sort.startswith("-")
        return OrderBy(by, descending=descending, nulls_last=True), newest_first


def _positive(text: str) -> int | None:
    # Above this, PostgreSQL has no such number.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _uses(dataset_id: int) -> Q:
    """To train on it, or to be evaluated on it."""
    evaluated = EvaluationSet.objects.filter(dataset_version__dataset=dataset_id)
    return Q(dataset_version__dataset=dataset_id) | Q(pk__in=evaluated.values("run"))


def _mentions(text: str) -> Q:
    found = (
        Q(name__icontains=text)
        | Q(notes__icontains=text)
        | Q(model_label__icontains=text)
        | Q(owner__username__icontains=text)
        | Q(dataset_version__dataset__name__icontains=text)
        | Q(recipe_version__recipe__name__icontains=text)
    )
    number = _positive(text.removeprefix("#"))
    return found | Q(pk=number) if number else found


def list_runs(team: Team, query: ListQuery) -> QuerySet[Run]:
    runs = Run.objects.filter(team=team)
    return (
        query.filter(runs)
        .select_related("owner", "dataset_version__dataset", "recipe_version__recipe")
        .defer("config", "metric_names", "notes", "fail_reason", "pause_reason")
        .order_by(*query.order())
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Facets:
    """What the filters can choose from: whatever the team's runs have."""

    owners: list[tuple[int, str]]
    models: list[str]
    datasets: list[tuple[int, str]]


def read_facets(team: Team) -> Facets:
    """One query over the distinct combinations, one over evaluation sets."""
    rows = (
        Run.objects.filter(team=team)
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


def elapsed(run: Run) -> timedelta | None:
    if run.started_at is None:
        return None
    return (run.finished_at or timezone.now()) - run.started_at
