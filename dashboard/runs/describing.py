"""A run's name, notes and tags, as people change them."""

from __future__ import annotations

from django.db import transaction

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.runs.keeping import refuse_held
from dashboard.runs.models import Run
from dashboard.runs.tags import read_tags

MAX_NAME = 80
MAX_NOTES = 20_000


@transaction.atomic
def describe_run(
    *, run: Run, user: User, name: str, notes: str, tags: str
) -> list[str]:
    """What was changed, by name. ValueError: the run is locked, or a value no good."""
    runs = Run.objects.select_for_update(of=("self",))
    held = runs.select_related("team", "locked_by").get(pk=run.pk)
    refuse_held(held)
    given = {"name": _name(name), "notes": _notes(notes), "tags": read_tags(tags)}
    changed = [field for field, value in given.items() if getattr(held, field) != value]
    if changed:
        Run.objects.filter(pk=held.pk).update(**{f: given[f] for f in changed})
        was = {"was": held.name} if "name" in changed else {}
        record(held.team, user, "run.described", held, changed=changed, **was)
    return changed


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
