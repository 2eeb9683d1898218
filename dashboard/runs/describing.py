"""A run's name, notes and tags, as people change them."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dashboard.accounts.models import User
from dashboard.accounts.services import record, told_change
from dashboard.project.edits import Edit
from dashboard.runs.keeping import refuse_held
from dashboard.runs.models import Run
from dashboard.runs.tags import read_tags

MAX_NAME = 80
MAX_NOTES = 20_000


@transaction.atomic
def describe_run(*, run: Run, user: User, edit: Edit) -> list[str]:
    """What was changed, by name. ValueError: the run is locked, or a value no good.

    EditConflict: somebody changed the same meanwhile.
    """
    runs = Run.objects.select_for_update(of=("self",))
    held = runs.select_related("team", "locked_by").get(pk=run.pk)
    refuse_held(held)
    now = {name: getattr(held, name) for name in ("name", "notes", "tags")}
    changes = edit.clean(name=_name, notes=_notes, tags=_tags).merge(now)
    if "tags" in changes:
        changes["tags"] = _tags(changes["tags"])  # several people's may be too many
    if changes:
        Run.objects.filter(pk=held.pk).update(**changes)
        record(held.team, user, "run.described", held, **told_change(now, changes))
    return list(changes)


def _tags(given: Any) -> list[str]:
    return read_tags(given if isinstance(given, str) else ", ".join(given))


def _name(text: str) -> str:
    name = " ".join(text.replace("\x00", "").split())
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(
            f"Nothing was changed: a name has 1 to {MAX_NAME} characters; got "
            f"{len(name)}."
        )
    return name


def _notes(text: str) -> str:
    notes = text.replace("\x00", "").replace("\r\n", "\n").strip()
    if len(notes) > MAX_NOTES:
        raise ValueError(
            f"Nothing was changed: notes have at most {MAX_NOTES:,} characters; got "
            f"{len(notes):,}."
        )
    return notes
