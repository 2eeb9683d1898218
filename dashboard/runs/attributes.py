"""A run's name, notes, tags and lock, as people change them."""

from __future__ import annotations

import re
from typing import Any

from django.db import transaction

from dashboard.accounts.models import User
from dashboard.accounts.services import describe_change, record
from dashboard.project.edits import Edit
from dashboard.runs.models import Run

MAX_NAME = 80
MAX_NOTES = 20_000
MAX_TAGS = 20
MAX_TAG_CHARS = 40


# A lock holds name, notes, tags, settings and checkpoints as they are and keeps the run
# out of archive and trash. What a run at work does goes on, as do stars.


def lock_reason(run: Run) -> str:
    """Why it may not be changed, to follow the run's name; "" where it may be."""
    if run.locked_at is None:
        return ""
    by = run.locked_by
    if by is None and run.locked_by_id is not None:
        # Somebody locked it while we waited for its row: PostgreSQL gives the row as it
        # is now, beside the person that it had before, which is nobody.
        by = User.objects.filter(pk=run.locked_by_id).first()
    return f"is locked by {by or 'a former member'}; unlock it first"


def refuse_locked(run: Run) -> None:
    """ValueError where it may not be changed; its row should be locked."""
    if run.trashed_at is not None:
        raise ValueError(f"Not changed: {run.name} is in the trash.")
    if reason := lock_reason(run):
        raise ValueError(f"Not changed: {run.name} {reason}.")


def check_tag(text: str) -> str:
    """The tag, spaces around it taken off. ValueError says what is wrong with it."""
    tag = " ".join(text.split())
    if not tag:
        raise ValueError("A tag has at least one character. Type one.")
    if len(tag) > MAX_TAG_CHARS:
        raise ValueError(
            f"A tag has at most {MAX_TAG_CHARS} characters; this one has {len(tag)}."
        )
    if wrong := re.search(r'[,"\\\x00-\x1f]', tag):
        raise ValueError(
            f"A tag holds no comma, quote, backslash or control character; got "
            f"{wrong[0]!r} in {tag!r}."
        )
    return tag


def read_tags(text: str) -> list[str]:
    """Tags with commas between, each once, in their order."""
    tags = [check_tag(part) for part in text.split(",") if part.strip()]
    found = list(dict.fromkeys(tags))
    if len(found) > MAX_TAGS:
        raise ValueError(f"A run has at most {MAX_TAGS} tags; got {len(found)}.")
    return found


@transaction.atomic
def describe_run(*, run: Run, user: User, edit: Edit) -> list[str]:
    """What was changed, by name. ValueError: the run is locked, or a value no good.

    EditConflict: somebody changed the same meanwhile.
    """
    runs = Run.objects.select_for_update(of=("self",))
    held = runs.select_related("team", "locked_by").get(pk=run.pk)
    refuse_locked(held)
    now = {name: getattr(held, name) for name in ("name", "notes", "tags")}
    changes = edit.clean(name=_name, notes=_notes, tags=_tags).merge(now)
    if "tags" in changes:
        changes["tags"] = _tags(changes["tags"])  # several people's may be too many
    if changes:
        Run.objects.filter(pk=held.pk).update(**changes)
        record(held.team, user, "run.described", held, **describe_change(now, changes))
    return list(changes)


def _tags(given: Any) -> list[str]:
    return read_tags(given if isinstance(given, str) else ", ".join(given))


def _name(text: str) -> str:
    name = " ".join(text.replace("\x00", "").split())
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(
            f"Not changed: a name has 1 to {MAX_NAME} characters; got {len(name)}."
        )
    return name


def _notes(text: str) -> str:
    notes = text.replace("\x00", "").replace("\r\n", "\n").strip()
    if len(notes) > MAX_NOTES:
        raise ValueError(
            f"Not changed: notes have at most {MAX_NOTES:,} characters; got "
            f"{len(notes):,}."
        )
    return notes
