"""What entries are about: how it is called, and where it is while it exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.db.models import Model
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.alerts.models import Alert, Channel, Rule
from dashboard.alerts.services import shown_address
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.reports.models import Report
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import (
    PublishedModel,
    Run,
    RunGroup,
    SavedView,
    TeamPreset,
)
from dashboard.samples.models import Group
from dashboard.training.models import Worker

# Of a rung above, or without a row to look at.
WORDS = {"apitoken": "API token"}
NAMES = ("name", "title", "dataset", "recipe", "to")  # as details call what is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One type of things: `team` is how its rows are told from another team's."""

    label: str
    model: type[Model]
    team: str = "team"
    beside: tuple[str, ...] = ()  # read with it, for its name or address
    page: str = ""  # the name of an address
    args: Callable[[Any], list[Any]] = lambda obj: [obj.pk]
    query: Callable[[Any], dict[str, Any]] = lambda obj: {}
    name: Callable[[Any], str] = str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """`url` is "" for what is there no more, or has no page."""

    label: str
    name: str
    url: str = ""


def _nothing(_: Any) -> list[Any]:
    return []


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "run": Kind(label="run", model=Run, page="run"),
        "rungroup": Kind(
            label="group of runs",
            model=RunGroup,
            page="runs",
            args=_nothing,
            query=lambda group: {"group": group.pk},
        ),
        "dataset": Kind(label="dataset", model=Dataset, page="dataset"),
        "datasetversion": Kind(
            label="dataset",
            model=DatasetVersion,
            team="dataset__team",
            beside=("dataset",),
            page="dataset",
            args=lambda version: [version.dataset_id],
            query=lambda version: {"version": version.number},
        ),
        "recipeversion": Kind(
            label="reward recipe",
            model=RecipeVersion,
            team="recipe__team",
            beside=("recipe",),
            page="reward",
            args=lambda version: [version.recipe_id],
            query=lambda version: {"version": version.number},
        ),
        "probe": Kind(label="probe", model=Probe, page="probe"),
        "rescoring": Kind(label="rescoring", model=Rescoring, page="rescoring"),
        "report": Kind(label="report", model=Report, page="report"),
        "group": Kind(
            label="group",
            model=Group,
            team="run__team",
            beside=("run",),
            page="group",
            args=lambda group: [group.run_id, group.step, group.prompt_index],
            name=lambda group: (
                f"{group.run}, step {group.step}, prompt {group.prompt_index}"
            ),
        ),
        "savedview": Kind(
            label="view of the run list",
            model=SavedView,
            page="runs_view",
            args=lambda view: [view.code],
        ),
        "importjob": Kind(label="import", model=ImportJob, page="dataset_import"),
        "alert": Kind(
            label="alert",
            model=Alert,
            team="run__team",
            page="alert",
            name=lambda alert: str(alert.read_as.get("name", "")),
        ),
        "rule": Kind(label="alert rule", model=Rule, page="alert_rules", args=_nothing),
        "channel": Kind(
            label="channel",
            model=Channel,
            page="alert_delivery",
            args=_nothing,
            name=shown_address,
        ),
        "teampreset": Kind(
            label="preset", model=TeamPreset, page="run_new", args=_nothing
        ),
        "publishedmodel": Kind(
            label="model", model=PublishedModel, page="models", args=_nothing
        ),
        "worker": Kind(
            label="worker", model=Worker, team="", page="workers", args=_nothing
        ),
        "team": Kind(
            label="team", model=Team, team="pk", page="team_settings", args=_nothing
        ),
        "user": Kind(
            label="person",
            model=User,
            team="teams",
            page="team_settings",
            args=_nothing,
        ),
    }
)


def show_objects(team: Team, entries: Iterable[AuditEntry]) -> list[Shown]:
    """Of each entry, in their order; a query for each type of things among them."""
    entries = list(entries)
    wanted: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        wanted[entry.object_type].add(entry.object_id)
    found = {
        (kind, obj.pk): obj
        for kind, pks in wanted.items()
        if kind in KINDS
        for obj in _find(KINDS[kind], team, pks)
    }
    return [
        _show(team, entry, found.get((entry.object_type, entry.object_id)))
        for entry in entries
    ]


def label_of(object_type: str) -> str:
    kind = KINDS.get(object_type)
    return kind.label if kind else WORDS.get(object_type, object_type)


def _find(kind: Kind, team: Team, pks: set[int]) -> list[Any]:
    found = kind.model._default_manager.filter(pk__in=pks)
    if kind.team:
        found = found.filter(**{kind.team: team.pk})
    return list(found.select_related(*kind.beside) if kind.beside else found)


def _show(team: Team, entry: AuditEntry, obj: Any) -> Shown:
    label = label_of(entry.object_type)
    if obj is None:
        told = (entry.detail.get(key) for key in NAMES)
        name = next((one for one in told if isinstance(one, str) and one), "")
        return Shown(label=label, name=name)
    kind = KINDS[entry.object_type]
    url = reverse(kind.page, args=[team.slug, *kind.args(obj)])
    if query := kind.query(obj):
        url += f"?{urlencode(query)}"
    return Shown(label=label, name=kind.name(obj), url=url)
