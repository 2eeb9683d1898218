"""Edits by several people at once: none replaces another that its author has not seen.

A form carries a digest of each field that it was opened with. A field that both have
changed is a conflict: nothing is stored and both texts are shown; saved again, the form
replaces the newer one. Fields that its author left alone stay as they are saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Digest each stored field, as in "name=1f0a… tags=27c4…"."""
    return _join({name: _digest(value) for name, value in values.items()})


def _digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


def _join(digests: Mapping[str, str]) -> str:
    return " ".join(f"{name}={digest}" for name, digest in digests.items())


@register.simple_tag(name="version_of")
def version_in_template(**values: Any) -> str:
    return version_of(values)


def version_of_form(form: BaseForm) -> str:
    return version_of({name: form[name].initial for name in form.fields})


def find_changes(
    now: Mapping[str, Any], typed: Mapping[str, Any], base: Base, *, version: str = ""
) -> dict[str, Any]:
    """Select the fields to write: those that their author has changed since `base`.

    `now`: read from a locked row. `version`: that of `now`, if it has one number.
    EditConflict: someone else has changed one of them, or the numbered version, too.
    """
    changes = {name: value for name, value in typed.items() if value != now[name]}
    if version:
        stale = list(changes) if base not in ("", version) else []
    else:
        opened, read = _opened(base, typed)
        for name in opened.keys() & changes.keys():
            if opened[name] == read(changes[name]):  # sent as it was opened
                del changes[name]
        stale = [n for n in changes if n in opened and opened[n] != read(now[n])]
        if isinstance(base, str):
            version = _join({**opened, **{name: _digest(now[name]) for name in stale}})
    if stale:
        clashes = [Clash(name, now[name], typed[name]) for name in stale]
        raise EditConflict(clashes, version)
    return changes


def _opened(
    base: Base, names: Iterable[str]
) -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
    """Fields as they were opened, and how a value is compared with them."""
    if not isinstance(base, str):
        return base, lambda value: value
    if not base:
        return {}, _digest
    digests = dict(part.partition("=")[::2] for part in base.split())
    # A field without a digest conflicts: it may have changed.
    return {**dict.fromkeys(names, ""), **digests}, _digest


def merge_saved(form: BaseForm, base: str) -> str:
    """Give the fields that their author left alone the saved values.

    Returns the version that the form, shown again, is of. The initial values are read
    from a locked row. EditConflict as above.
    """
    now = {name: form[name].initial for name in form.fields}
    typed = {name: form[name].data for name in form.changed_data}
    changes = find_changes(now, typed, base)
    data = QueryDict(mutable=True)
    data.update(form.data)
    untouched = typed.keys() - changes.keys()
    for name in untouched:
        data[name] = now[name]
    form.data = data
    digests, _ = _opened(base, ())
    return _join({**digests, **{name: _digest(now[name]) for name in untouched}})


def read_fields(post: QueryDict, names: Iterable[str]) -> dict[str, str]:
    return {name: _text(post[name]) for name in names if name in post}


def _text(value: Any) -> str:
    """Return a value as a form sends it, without the CRLF line ends of browsers."""
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
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
