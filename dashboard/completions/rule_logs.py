"""Output and errors of a run's rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from django import forms
from django.db.models import Count, QuerySet
from django.http import QueryDict

from dashboard.completions.forms import FilterForm, offer_rules
from dashboard.completions.models import Group, RuleNote
from dashboard.completions.prompts import read_snippets
from dashboard.project.database import FixedQuery
from dashboard.runs.models import Run

KINDS = {"error": True, "print": False}


class RewardLogForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"page": 1}
    behind: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = (
        ("Rule output", ("kind",)),
        ("Rule", ("rule",)),
        ("Steps", ("first_step", "last_step")),
        ("Prompt", ("prompt",)),
    )

    text = forms.CharField(required=False, max_length=200, label="Text contains")
    rule = forms.CharField(
        required=False, max_length=40, label="Rule", widget=forms.Select
    )
    kind = forms.ChoiceField(
        required=False,
        label="Type",
        choices=[("", "all"), ("error", "failed"), ("print", "printed")],
    )
    first_step = forms.IntegerField(required=False, min_value=0, label="From step")
    last_step = forms.IntegerField(required=False, min_value=0, label="To step")
    prompt = forms.IntegerField(required=False, min_value=0, label="Prompt number")
    page = forms.IntegerField(required=False, min_value=1)

    @classmethod
    def of_rules(cls, query: QueryDict, rules: Iterable[str]) -> Self:
        form = cls.read(query)
        offer_rules(form, rules)
        return form


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    note: RuleNote
    snippet: str  # of the prompt
    num_kept: int  # stored entries, of the group.num_notes of its group


def find_notes(run: Run, form: RewardLogForm) -> QuerySet[RuleNote]:
    """Find notes, the newest step's first, within a step as they came."""
    notes = RuleNote.objects.filter(run=run, group__superseded_by__isnull=True)
    values = {
        "text__icontains": form.value("text"),
        "rule": form.value("rule"),
        "step__gte": form.value("first_step"),
        "step__lte": form.value("last_step"),
        "group__prompt_index": form.value("prompt"),
        "is_error": KINDS.get(form.value("kind")),
    }
    return notes.filter(
        **{k: v for k, v in values.items() if v not in (None, "")}
    ).order_by("-step", "id")


def read_entries(run: Run, ids: list[int]) -> list[Entry]:
    """Three queries."""
    notes = RuleNote.objects.select_related("group").in_bulk(ids)
    group_ids = {note.group_id for note in notes.values()}
    num_kept = dict(
        RuleNote.objects.filter(group__in=group_ids)
        .values_list("group")
        .annotate(num=Count("id"))
        .order_by()
    )
    snippets = read_snippets(run, [note.group for note in notes.values()])
    return [
        Entry(
            note=notes[i],
            snippet=snippets[notes[i].group.prompt_index],
            num_kept=num_kept[notes[i].group_id],
        )
        for i in ids
        if i in notes
    ]


_notes_of = FixedQuery(
    lambda group: RuleNote.objects.filter(group=group).order_by(
        "position", "-is_error", "id"
    )
)


def notes_of(group: Group) -> dict[int, list[RuleNote]]:
    """Read notes by completion, errors first."""
    by_position: dict[int, list[RuleNote]] = {}
    for note in _notes_of(group.pk):
        by_position.setdefault(note.position, []).append(note)
    return by_position
