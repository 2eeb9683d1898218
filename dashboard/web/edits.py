"""Edits by several people at once: none replaces another that its author has not seen.

A form carries the version of what it was opened with. An edit of an older version
stores nothing: both texts are shown, and saved again it replaces the newer one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any, TypeAlias

from django import template
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

BASE = "base_version"  # a form's hidden field
LONG = 80  # characters; more are typed into several lines
MAX_DIFFERENCES = 400  # lines that are shown
register = template.Library()

# A version, "" if the sender names none, or the values that a program has read.
Base: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Clash:
    """A field with its saved and its typed value."""

    field: str
    now: Any
    typed: Any


class EditConflict(Exception):
    """Nothing was written. Not a ValueError: what was typed is in order."""

    def __init__(self, clashes: Sequence[Clash], version: str) -> None:
        super().__init__(", ".join(clash.field for clash in clashes))
        self.clashes, self.version = clashes, version


def version_of(values: Mapping[str, Any]) -> str:
    """Digest stored fields."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@register.simple_tag(name="version_of")
def version_in_template(**values: Any) -> str:
    return version_of(values)


def version_of_form(form: BaseForm) -> str:
    return version_of({name: form[name].initial for name in form.fields})


def find_changes(
    now: Mapping[str, Any],
    typed: Mapping[str, Any],
    base: Base,
    *,
    version: str = "",
) -> dict[str, Any]:
    """The fields to write. `now` is read from a locked row.

    `version`: that of `now`, where it is numbered. EditConflict: it is not `base`.
    """
    version = version or version_of(now)
    changes = {name: value for name, value in typed.items() if value != now[name]}
    if isinstance(base, Mapping):
        for name in base.keys() & changes.keys():
            if base[name] == changes[name]:  # sent as it was read
                del changes[name]
        stale = [name for name in changes if base.get(name, now[name]) != now[name]]
    else:
        stale = [] if base in ("", version) else [*changes]
    if stale:
        clashes = [Clash(name, now[name], typed[name]) for name in stale]
        raise EditConflict(clashes, version)
    return changes


def refuse_stale(form: BaseForm, base: str) -> None:
    """EditConflict as above. The form's initial values are read from a locked row."""
    now = {name: form[name].initial for name in form.fields}
    find_changes(now, now | {name: form[name].data for name in form.changed_data}, base)


def read_fields(post: QueryDict, names: Iterable[str]) -> dict[str, str]:
    return {name: _text(post[name]) for name in names if name in post}


def _text(value: Any) -> str:
    """A value as a form sends it, without the CRLF line ends of browsers."""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else str(value).replace("\r\n", "\n")


def show_conflict(
    request: HttpRequest,
    conflict: EditConflict,
    *,
    labels: Mapping[str, str] | None = None,
    choices: Mapping[str, Mapping[str, str]] | None = None,
    **context: Any,
) -> HttpResponse:
    """Show the saved and the typed value of each field, in a form that saves again.

    `choices`: labels of values, of fields that are chosen, not typed.
    """
    labels, choices = labels or {}, choices or {}
    fields = [
        _describe(clash, labels, choices.get(clash.field)) for clash in conflict.clashes
    ]
    context |= {"base_version": conflict.version}
    return _show(request, fields, status=409, **context)


def show_refusal(
    request: HttpRequest, names: Iterable[str], **context: Any
) -> HttpResponse:
    """Show why nothing was saved, and what was typed, in a form that saves again."""
    typed = read_fields(request.POST, names)
    fields = [_describe(Clash(name, text, text), {}) for name, text in typed.items()]
    context |= {"base_version": request.POST.get(BASE, "")}
    return _show(request, fields, status=422, **context)


def _show(
    request: HttpRequest, fields: list[dict[str, Any]], *, status: int, **context: Any
) -> HttpResponse:
    replaced = {"csrfmiddlewaretoken", BASE, *(field["name"] for field in fields)}
    context |= {
        "fields": fields,
        "others": [
            (name, value)
            for name, values in request.POST.lists()
            if name not in replaced
            for value in values
        ],
    }
    return render(request, "edit_conflict.html", context, status=status)


def _describe(
    clash: Clash, labels: Mapping[str, str], choices: Mapping[str, str] | None = None
) -> dict[str, Any]:
    now, typed = _text(clash.now), _text(clash.typed)
    field: dict[str, Any] = {
        "name": clash.field,
        "label": labels.get(clash.field, clash.field.replace("_", " ").capitalize()),
        "now": now,
        "typed": typed,
    }
    if isinstance(clash.typed, bool):
        choices = {"on": "yes", "": "no"}
    if choices is None:
        is_long = max(len(now), len(typed)) > LONG or "\n" in now + typed
        field["is_long"] = is_long
        return field | (compare_texts(now, typed) if is_long else {})
    is_list = isinstance(clash.typed, list)
    chosen = clash.typed if is_list else [typed]
    return field | {
        "now": ", ".join(
            choices.get(value, value) for value in (clash.now if is_list else [now])
        ),
        "type": "checkbox" if is_list else "radio",
        "options": [
            (value, choices.get(value, value), value in chosen)
            for value in (choices if is_list else (now, typed))
        ],
    }


def compare_texts(theirs: str, mine: str) -> dict[str, Any]:
    """Describe what differs, for templates/includes/text_changes.html."""
    changes = list_changes(theirs, mine)
    return {
        "theirs": theirs,
        "changes": changes[:MAX_DIFFERENCES],
        "num_changes": len(changes),
    }


def list_changes(before: str, after: str) -> list[tuple[str, str]]:
    """Lines that were added, removed, or surround those: ("+", line) …"""
    lines = unified_diff(before.split("\n"), after.split("\n"), n=2, lineterm="")
    return [(line[:1], line[1:]) for line in list(lines)[2:]]
