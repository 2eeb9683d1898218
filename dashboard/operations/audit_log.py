"""The audit log: what its entries are about, the log as a file, and its filters."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from types import MappingProxyType
from typing import Any, Literal

from django import forms
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.alerts.models import Alert, Channel, Rule
from dashboard.alerts.services import shown_address
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.questions.models import Question
from dashboard.analysis.reports.models import Report
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.completions.models import Group
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.datasets.row_exports import csv_lines, defused
from dashboard.project.database import fetch_all
from dashboard.project.forms import select, set_choices, text_input
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import PublishedModel, Run, SavedView, Sweep, TeamPreset
from dashboard.supervision.models import Worker

WORDS = {"apitoken": "API token"}  # which has no page
NAMES = (
    "name",
    "title",
    "dataset",
    "recipe",
    "to",
)  # name of deleted objects in details
AT_A_TIME = 1_000
COLUMNS = (
    *("id", "time", "person", "person_id", "verb", "object_type", "object_id"),
    *("address", "agent", "program", "is_erased", "detail"),
)
# From one value to the next in the index: DISTINCT would read a team's every entry.
NEXT_VALUES = """
WITH RECURSIVE known(value) AS (
    (SELECT {name} FROM accounts_auditentry
     WHERE team_id = %(team)s ORDER BY {name} LIMIT 1)
    UNION ALL
    SELECT (SELECT {name} FROM accounts_auditentry
            WHERE team_id = %(team)s AND {name} > known.value
            ORDER BY {name} LIMIT 1)
    FROM known WHERE known.value IS NOT NULL
)
SELECT value FROM known WHERE value IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class ObjectType:
    """A type of objects: `team` is how its rows are found in a team."""

    label: str
    model: type[Model]
    page: str  # the name of an address
    team: str = "team"
    beside: tuple[str, ...] = ()  # read with it, for its name or address
    args: Callable[[Any], list[Any]] = lambda obj: [obj.pk]
    query: Callable[[Any], dict[str, Any]] = lambda obj: {}
    name: Callable[[Any], str] = str


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedObject:
    """`url` is "" for objects that were deleted or have no page."""

    label: str
    name: str
    url: str = ""


def _nothing(_: Any) -> list[Any]:
    return []


SWEEP = ObjectType(
    "sweep", Sweep, "runs", args=_nothing, query=lambda sweep: {"sweep": sweep.pk}
)
OBJECT_TYPES: Mapping[str, ObjectType] = MappingProxyType(
    {
        "run": ObjectType("run", Run, "run"),
        "sweep": SWEEP,
        "rungroup": SWEEP,  # in older entries
        "dataset": ObjectType("dataset", Dataset, "dataset"),
        "datasetversion": ObjectType(
            "dataset",
            DatasetVersion,
            "dataset",
            team="dataset__team",
            beside=("dataset",),
            args=lambda version: [version.dataset_id],
            query=lambda version: {"version": version.number},
        ),
        "recipeversion": ObjectType(
            "reward",
            RecipeVersion,
            "reward",
            team="recipe__team",
            beside=("recipe",),
            args=lambda version: [version.recipe_id],
            query=lambda version: {"version": version.number},
        ),
        "probe": ObjectType("test", Probe, "probe"),
        "question": ObjectType(
            "question",
            Question,
            "question",
            beside=("run",),
            args=lambda question: [question.run_id, question.pk],
        ),
        "rescoring": ObjectType("rescoring", Rescoring, "rescoring"),
        "report": ObjectType("report", Report, "report"),
        "group": ObjectType(
            "group",
            Group,
            "group",
            team="run__team",
            beside=("run",),
            args=lambda group: [group.run_id, group.step, group.prompt_index],
            name=lambda group: (
                f"{group.run}, step {group.step}, prompt {group.prompt_index}"
            ),
        ),
        "savedview": ObjectType(
            "view",
            SavedView,
            "runs_view",
            args=lambda view: [view.code],
        ),
        "importjob": ObjectType("import", ImportJob, "dataset_import"),
        "alert": ObjectType(
            "alert",
            Alert,
            "alert",
            team="run__team",
            name=lambda alert: str(alert.read_as.get("name", "")),
        ),
        "rule": ObjectType("alert rule", Rule, "alert_rules", args=_nothing),
        "channel": ObjectType(
            "channel", Channel, "alert_delivery", args=_nothing, name=shown_address
        ),
        "teampreset": ObjectType("preset", TeamPreset, "run_new", args=_nothing),
        "publishedmodel": ObjectType("model", PublishedModel, "models", args=_nothing),
        "worker": ObjectType("worker", Worker, "compute", team="", args=_nothing),
        "team": ObjectType("team", Team, "team_settings", team="pk", args=_nothing),
        "user": ObjectType(
            "person", User, "team_settings", team="teams", args=_nothing
        ),
    }
)


def show_objects(team: Team, entries: Iterable[AuditEntry]) -> list[LoggedObject]:
    """Show the object of each entry, in their order; a query for each type of things
    among them.
    """
    entries = list(entries)
    keys: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        keys[entry.object_type].add(entry.object_id)
    objects: dict[tuple[str, int], Any] = {}
    for name, pks in keys.items():
        if kind := OBJECT_TYPES.get(name):
            rows = kind.model._default_manager.filter(pk__in=pks)
            if kind.team:
                rows = rows.filter(**{kind.team: team.pk})
            if kind.beside:
                rows = rows.select_related(*kind.beside)
            objects |= {(name, obj.pk): obj for obj in rows}
    return [
        _show(team, entry, objects.get((entry.object_type, entry.object_id)))
        for entry in entries
    ]


def label_of(object_type: str) -> str:
    kind = OBJECT_TYPES.get(object_type)
    return kind.label if kind else WORDS.get(object_type, object_type)


def _show(team: Team, entry: AuditEntry, obj: Any) -> LoggedObject:
    label = label_of(entry.object_type)
    if obj is None:
        names = (entry.detail.get(key) for key in NAMES)
        name = next((text for text in names if isinstance(text, str) and text), "")
        return LoggedObject(label=label, name=name)
    kind = OBJECT_TYPES[entry.object_type]
    url = reverse(kind.page, args=[team.slug, *kind.args(obj)])
    if query := kind.query(obj):
        url += f"?{urlencode(query)}"
    return LoggedObject(label=label, name=kind.name(obj), url=url)


# The log as a file: JSONL for programs, CSV for people with a spreadsheet.


def write_jsonl(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    for row in _rows(entries):
        yield json.dumps(row, ensure_ascii=False) + "\n"


def write_csv(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    rows = ([_cell(row[name]) for name in COLUMNS] for row in _rows(entries))
    return csv_lines(COLUMNS, rows)


WRITERS = {"jsonl": write_jsonl, "csv": write_csv}


def _rows(entries: QuerySet[AuditEntry]) -> Iterator[dict[str, Any]]:
    """Yield the newest first, some at a time: a log may be long, and its reader
    slow.
    """
    page = list(entries[:AT_A_TIME])
    while page:
        for entry in page:
            yield row_of(entry)
        page = list(entries.filter(pk__lt=page[-1].pk)[:AT_A_TIME])


def row_of(entry: AuditEntry) -> dict[str, Any]:
    person = entry.actor
    return {
        "id": entry.pk,
        "time": entry.created_at.astimezone(UTC).isoformat(),
        "person": person.username if person else None,
        "person_id": entry.actor_id,
        "verb": entry.verb,
        "object_type": entry.object_type,
        "object_id": entry.object_id,
        "address": entry.address,
        "agent": entry.agent,
        "program": entry.program,
        "is_erased": entry.is_erased,
        "detail": entry.detail,
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return defused(json.dumps(value, ensure_ascii=False))
    return defused(str(value))


def known_values(team: Team, name: Literal["verb", "object_type"]) -> list[str]:
    """List the values of it in the team's entries, in order; one query."""
    query = NEXT_VALUES.format(name=name)
    return [value for (value,) in fetch_all(query, {"team": team.pk})]


ITSELF = "cohort"  # what no person did
ERASED = "erased"


class FilterForm(forms.Form):
    """A filter that cannot be read is an error, and finds nothing."""

    by = forms.ChoiceField(label="Who", required=False, widget=select())
    verb = forms.ChoiceField(label="Action", required=False, widget=select())
    kind = forms.ChoiceField(label="Object type", required=False, widget=select())
    number = forms.IntegerField(
        label="Object ID",
        required=False,
        min_value=1,
        max_value=2**63 - 1,
        widget=text_input(type="number", min=1, placeholder="any"),
    )
    since = forms.DateField(
        label="From", required=False, widget=text_input(type="date")
    )
    until = forms.DateField(label="To", required=False, widget=text_input(type="date"))

    def __init__(self, data: Any, *, team: Team) -> None:
        super().__init__(data)
        self.entries = AuditEntry.objects.filter(team=team)
        # Everyone who did something, including former members; then Cohort and erased
        # people.
        own = self.entries.filter(actor=OuterRef("pk"))
        acted = User.objects.filter(Exists(own)).order_by("username")
        people = [(str(user.pk), f"{user} ({user.username})") for user in acted]
        people += [(ITSELF, "Cohort"), (ERASED, "Erased person")]
        set_choices(self, "by", [("", "Anyone"), *people])
        verbs = [(verb, verb) for verb in known_values(team, "verb")]
        set_choices(self, "verb", [("", "Anything"), *verbs])
        kinds = [(kind, label_of(kind)) for kind in known_values(team, "object_type")]
        set_choices(self, "kind", [("", "Anything"), *kinds])

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        since, until = data.get("since"), data.get("until")
        if since and until and since > until:
            message = f"The end must not be before {since:%Y-%m-%d}."
            self.add_error("until", forms.ValidationError(message, code="before_start"))
        return data

    def narrow(self) -> QuerySet[AuditEntry]:
        """Apply the filters; the newest first."""
        entries = self.entries.select_related("actor").order_by("-id")
        if not self.is_valid():
            return entries.none()
        data = self.cleaned_data
        if data["by"] == ITSELF:
            entries = entries.filter(actor=None, is_erased=False)
        elif data["by"] == ERASED:
            entries = entries.filter(is_erased=True)
        elif data["by"]:
            entries = entries.filter(actor=int(data["by"]))
        filters = {
            "verb": data["verb"],
            "object_type": data["kind"],
            "object_id": data["number"],
            "created_at__gte": data["since"]
            and datetime.combine(data["since"], time(), tzinfo=UTC),
            "created_at__lte": data["until"]
            and datetime.combine(data["until"], time.max, tzinfo=UTC),
        }
        return entries.filter(
            **{name: value for name, value in filters.items() if value}
        )

    @property
    def is_narrowed(self) -> bool:
        return any(self.data.get(name) for name in self.fields)
