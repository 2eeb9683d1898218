"""Edits by several people at once: merged field by field, so that none is lost.

A form sends the value that each field had when it was shown, as `was.<field>`; a
program may send the same as `was`. Only differing fields are written. If the stored
value has changed as well, that is a conflict, and both values are shown. Without `was`,
a field is written as sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from typing import Any

from django.core.exceptions import ValidationError
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

WAS = "was."  # before a field's name
TAKE = "take."  # "theirs": leave the field as it is by now
LONG = 80  # characters; more are typed into several lines
MAX_DIFFERENCES = 400  # lines that are shown


@dataclass(frozen=True, slots=True)
class Clash:
    """A field that two people changed to different values."""

    field: str
    now: Any
    typed: Any


class EditConflict(Exception):
    """Nothing was written. Not a ValueError: what was typed is in order."""

    def __init__(self, clashes: Sequence[Clash]) -> None:
        super().__init__(", ".join(clash.field for clash in clashes))
        self.clashes = clashes


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """New values of fields, and the values that the editor saw."""

    given: Mapping[str, Any]
    was: Mapping[str, Any] = field(default_factory=dict)
    sent_as: Mapping[str, str] = field(default_factory=dict)  # names of a form's own

    @classmethod
    def read(
        cls,
        post: QueryDict,
        names: Iterable[str],
        *,
        flags: Iterable[str] = (),
        lists: Iterable[str] = (),
    ) -> Edit:
        """Fields that a form sent. A flag or list that it left out is not ticked."""
        given: dict[str, Any] = {n: _text(post[n]) for n in names if n in post}
        given |= {name: name in post for name in flags}
        given |= {name: post.getlist(name) for name in lists}
        was: dict[str, Any] = {
            name: _text(post[WAS + name]) for name in given if WAS + name in post
        }
        was |= {name: bool(was[name]) for name in flags if name in was}
        was |= {name: was[name].split(",") for name in lists if name in was}
        kept = {n: v for n, v in given.items() if post.get(TAKE + n) != "theirs"}
        return cls(given=kept, was=was)

    @classmethod
    def of(cls, name: str, value: Any, was: Any = None) -> Edit:
        """Of one field; `was` None: not known."""
        return cls(given={name: value}, was={} if was is None else {name: was})

    def rename(self, fields: Mapping[str, str]) -> Edit:
        """Under the row's names, where the form's controls have others."""
        given = {fields.get(name, name): value for name, value in self.given.items()}
        was = {fields.get(name, name): value for name, value in self.was.items()}
        return Edit(given=given, was=was, sent_as={v: n for n, v in fields.items()})

    def clean(self, **how: Callable[[Any], Any]) -> Edit:
        """Read by a function for each field, which raises ValueError."""
        given, was = (
            {n: how[n](value) if n in how else value for n, value in values.items()}
            for values in (self.given, self.was)
        )
        return replace(self, given=given, was=was)

    def merge(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """The fields to write. `now` is read from a locked row.

        EditConflict if someone has changed one of them since.
        """
        changes: dict[str, Any] = {}
        clashes = []
        for name, value in self.given.items():
            was = self.was.get(name, now[name])
            if value in (was, now[name]):
                continue
            if isinstance(value, list) and isinstance(was, list):
                value = _merge_lists(was, now[name], value)
            elif was != now[name]:
                sent_as = self.sent_as.get(name, name)
                clashes.append(Clash(sent_as, now[name], value))
            if value != now[name]:
                changes[name] = value
        if clashes:
            raise EditConflict(clashes)
        return changes


def _text(text: Any) -> str:
    """As typed: browsers send CRLF line ends."""
    return str(text).replace("\r\n", "\n")


def _merge_lists(was: list[Any], now: list[Any], value: list[Any]) -> list[Any]:
    """`now`, without the removed items and with the added ones."""
    if was == now:
        return value
    kept = [each for each in now if each in value or each not in was]
    return [*kept, *(each for each in value if each not in was and each not in now)]


def values_of(form: BaseForm) -> dict[str, str]:
    """What the unfilled form would send back."""
    return {name: raw(form[name].value()) for name in form.fields}


def raw(value: Any) -> str:
    """
    >>> raw(None), raw(False), raw(True), raw(0.5)
    ('', '', 'on', '0.5')
    """
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None else str(value)


def merge_form(form: BaseForm, post: QueryDict) -> dict[str, str]:
    """Data for a form to validate: the changes on top of the current values.

    `form` is unbound, of a locked row. EditConflict as above.
    """
    now = values_of(form)
    given = {
        name: _text(post.get(name, ""))
        for name in now
        if post.get(TAKE + name) != "theirs"
    }
    was = {name: _text(post[WAS + name]) for name in now if WAS + name in post}
    how = {name: _reader(form, name) for name in now}
    edit = Edit(given=given, was=was).clean(**how)
    try:
        changes = edit.merge({name: how[name](text) for name, text in now.items()})
    except EditConflict as conflict:  # in the words of the form, as it is sent again
        fields = [clash.field for clash in conflict.clashes]
        raise EditConflict([Clash(n, now[n], given[n]) for n in fields]) from None
    return {name: given[name] if name in changes else now[name] for name in now}


def _reader(form: BaseForm, name: str) -> Callable[[str], Any]:
    """The field's value; of what has none the text, which its form refuses later."""

    def read(text: str) -> Any:
        try:
            return form.fields[name].to_python(text)
        except ValidationError:
            return text

    return read


def began_with(form: BaseForm, post: QueryDict | None) -> dict[str, str]:
    """Values of a form's hidden fields, also when it is shown again."""
    held = values_of(form)
    return {n: post.get(WAS + n, text) if post else text for n, text in held.items()}


def show_conflict(
    request: HttpRequest,
    conflict: EditConflict,
    *,
    what: str,
    back: str,
    labels: Mapping[str, str] | None = None,
    choices: Mapping[str, Mapping[str, str]] | None = None,
    **context: Any,
) -> HttpResponse:
    """Both values of each field, and a form that sends the whole edit once more.

    `choices`: of fields that are chosen, not typed, their values' labels.
    """
    labels, choices = labels or {}, choices or {}
    clashing = {clash.field for clash in conflict.clashes}
    own = {*clashing, *(pre + name for pre in (WAS, TAKE) for name in clashing)}
    context |= {
        "what": what,
        "back": back,
        "clashes": [
            _describe(clash, request.POST.get(clash.field, ""), labels, choices)
            for clash in conflict.clashes
        ],
        "kept": [
            (name, value)
            for name, values in request.POST.lists()
            if name not in own and name != "csrfmiddlewaretoken"
            for value in values
        ],
    }
    return render(request, "edit_conflict.html", context, status=409)


def show_refusal(
    request: HttpRequest,
    refusal: str,
    *,
    what: str,
    back: str,
    names: Sequence[str],
    **context: Any,
) -> HttpResponse:
    """Why it was not saved, and what was typed, to be sent once more."""
    typed = {name: _text(request.POST.get(name, "")) for name in names}
    context |= {
        "what": what,
        "back": back,
        "refusal": refusal,
        "typed": [
            (name, name.capitalize(), text, len(text) > LONG or "\n" in text)
            for name, text in typed.items()
        ],
        "kept": [(n, v) for n, v in request.POST.items() if n.startswith(WAS)],
    }
    return render(request, "edit_conflict.html", context, status=422)


def _describe(
    clash: Clash,
    typed: str,
    labels: Mapping[str, str],
    choices: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    now, typed = raw(clash.now), _text(typed)
    shown = choices.get(clash.field)
    is_long = max(len(now), len(typed)) > LONG or "\n" in now + typed
    changes = compare_texts(now, typed) if is_long and not shown else []
    return {
        "field": clash.field,
        "label": labels.get(clash.field, clash.field.replace("_", " ").capitalize()),
        "now": now,
        "typed": typed,
        "now_shown": shown.get(now, now) if shown else now,
        "typed_shown": shown.get(typed, typed) if shown else typed,
        "is_chosen": shown is not None,
        "is_long": is_long,
        "changes": changes[:MAX_DIFFERENCES],
        "num_changes": len(changes),
    }


def compare_texts(before: str, after: str) -> list[tuple[str, str]]:
    """Lines that were added, removed, or surround those: ("+", line) …"""
    lines = unified_diff(before.split("\n"), after.split("\n"), n=2, lineterm="")
    return [(line[:1], line[1:]) for line in list(lines)[2:]]
