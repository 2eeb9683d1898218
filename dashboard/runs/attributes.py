"""A run's name, notes, tags and lock, as people change them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from dashboard.accounts.models import User
from dashboard.accounts.services import describe_change, record
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.web.edits import find_changes

MAX_NAME = 80
MAX_NOTES = 20_000
MAX_TAGS = 20
MAX_TAG_CHARS = 40


# A lock protects name, notes, tags, settings and checkpoints, and keeps the run out of
# archive and trash. Training continues, and stars can still change.


def lock_reason(run: Run) -> str:
    """Say why the run may not change, to follow its name; "" if it may."""
    if run.locked_at is None:
        return ""
    by = run.locked_by
    if by is None and run.locked_by_id is not None:
        # Locked while we waited for its row: PostgreSQL returns the current row, but
        # the join still has the previous person, which is none.
        by = User.objects.filter(pk=run.locked_by_id).first()
    return f"is locked by {by or 'a former member'}; unlock it first"


def refuse_locked(run: Run) -> None:
    """UserError if it may not change; its row should be locked."""
    if run.trashed_at is not None:
        raise UserError(
            "runs.in_trash", f"{run.name} is in the trash. Restore it first."
        )
    if reason := lock_reason(run):
        raise UserError("runs.locked", f"{run.name} {reason}.")


def check_tag(text: str) -> str:
    """Return the tag without surrounding spaces. UserError says what is wrong
    with it.
    """
    tag = " ".join(text.split())
    if not tag:
        raise UserError("runs.tag_missing", "A tag cannot be empty. Enter a tag.")
    if len(tag) > MAX_TAG_CHARS:
        raise UserError(
            "runs.tag_too_long",
            f"A tag has at most {MAX_TAG_CHARS} characters; got {len(tag)}.",
        )
    if wrong := re.search(r'[,"\\\x00-\x1f]', tag):
        raise UserError(
            "runs.bad_tag",
            "A tag cannot contain a comma, quote, backslash or control character; got "
            f"{wrong[0]!r} in {tag!r}.",
        )
    return tag


def read_tags(text: str) -> list[str]:
    """Tags separated by commas, without duplicates, in their order."""
    unique = list(
        dict.fromkeys([check_tag(part) for part in text.split(",") if part.strip()])
    )
    if len(unique) > MAX_TAGS:
        raise UserError(
            "runs.too_many_tags",
            f"A run has at most {MAX_TAGS} tags; got {len(unique)}.",
        )
    return unique


@transaction.atomic
def describe_run(
    *, run: Run, user: User, typed: Mapping[str, Any], base: str = ""
) -> list[str]:
    """Names of the changed fields. UserError: the run is locked or a value is invalid.

    EditConflict: one of them was changed since `base`.
    """
    locked = (
        Run.objects.select_for_update(of=("self",))
        .select_related("team", "locked_by")
        .get(pk=run.pk)
    )
    refuse_locked(locked)
    now = {name: getattr(locked, name) for name in typed}
    read = {"name": _name, "notes": _notes, "tags": _tags}
    changes = find_changes(
        now, {name: read[name](value) for name, value in typed.items()}, base
    )
    if changes:
        Run.objects.filter(pk=locked.pk).update(**changes)
        record(
            locked.team, user, "run.described", locked, **describe_change(now, changes)
        )
    return list(changes)


def _tags(typed: Any) -> list[str]:
    return read_tags(typed if isinstance(typed, str) else ", ".join(typed))


def _name(text: str) -> str:
    name = " ".join(text.replace("\x00", "").split())
    if not 0 < len(name) <= MAX_NAME:
        raise UserError(
            "runs.bad_name_length",
            f"A name has 1 to {MAX_NAME} characters; got {len(name)}.",
        )
    return name


def _notes(text: str) -> str:
    notes = text.replace("\x00", "").replace("\r\n", "\n").strip()
    if len(notes) > MAX_NOTES:
        raise UserError(
            "runs.notes_too_long",
            f"Notes have at most {MAX_NOTES:,} characters; got {len(notes):,}.",
        )
    return notes
