"""What the rules of a run printed and failed with, found and paged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count, QuerySet

from dashboard.runs.models import Run
from dashboard.samples.forms import RewardLogForm
from dashboard.samples.models import Group, RuleNote

PAGE_SIZE = 50
MAX_FOUND = 10_000  # counted and paged through; beyond it, the reader narrows
KINDS = {"error": True, "print": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    note: RuleNote
    num_kept: int  # of the group.num_notes texts of its group


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPage:
    entries: list[Entry]
    number: int
    num_pages: int
    first: int  # 1 …, of the found
    num_found: int
    is_cut: bool  # more than num_found match

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1


def find_notes(run: Run, form: RewardLogForm) -> QuerySet[RuleNote]:
    """The newest step's first, within a step as they came."""
    found = RuleNote.objects.filter(run=run, group__superseded_by__isnull=True)
    lookups = {
        "text": "text__icontains",
        "rule": "rule",
        "first_step": "step__gte",
        "last_step": "step__lte",
        "prompt": "group__prompt_index",
    }
    given = {lookup: form.value(name) for name, lookup in lookups.items()}
    given["is_error"] = KINDS.get(form.value("kind"))
    return found.filter(
        **{k: v for k, v in given.items() if v not in (None, "")}
    ).order_by("-step", "id")


def read_log(run: Run, form: RewardLogForm) -> LogPage:
    """One page of what the filters find. Three queries."""
    ids = list(find_notes(run, form).values_list("id", flat=True)[: MAX_FOUND + 1])
    is_cut = len(ids) > MAX_FOUND
    del ids[MAX_FOUND:]
    num_pages = max(1, -(-len(ids) // PAGE_SIZE))
    number = min(form.value("page"), num_pages)
    start = (number - 1) * PAGE_SIZE
    return LogPage(
        entries=_read_entries(ids[start : start + PAGE_SIZE]),
        number=number,
        num_pages=num_pages,
        first=start + 1 if ids else 0,
        num_found=len(ids),
        is_cut=is_cut,
    )


def _read_entries(ids: list[int]) -> list[Entry]:
    notes = RuleNote.objects.select_related("group").in_bulk(ids)
    kept = count_kept({note.group_id for note in notes.values()})
    return [
        Entry(note=notes[i], num_kept=kept[notes[i].group_id])
        for i in ids
        if i in notes
    ]


def count_kept(group_ids: Iterable[int]) -> dict[int, int]:
    """How many texts of each group are kept; groups without are left out."""
    kept = RuleNote.objects.filter(group__in=group_ids).values_list("group")
    return dict(kept.annotate(num=Count("id")).order_by())


def notes_of(group: Group) -> dict[int, list[RuleNote]]:
    """By completion, errors first."""
    found: dict[int, list[RuleNote]] = {}
    for note in group.notes.order_by("position", "-is_error", "id"):
        found.setdefault(note.position, []).append(note)
    return found
