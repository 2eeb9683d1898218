"""Rows of a version that a page or a job wants: the filter form, and reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Self
from urllib.parse import urlencode

import numpy as np
from django import forms
from django.db.models import (
    BigIntegerField,
    BinaryField,
    F,
    Func,
    Model,
    QuerySet,
    RowRange,
    Sum,
    TextField,
    Value,
    Window,
)
from django.db.models.functions import Cast, Coalesce
from django.http import QueryDict
from numpy.typing import NDArray

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.project.forms import set_choices

# A chat prompt is stored as JSON: search the contents of its messages, and what tools
# are called with.
_CONTENTS = (
    "(jsonb_path_query_array(prompt::jsonb, '$[*].content ? (@ != null)')"
    " || CASE WHEN strpos(prompt, '\"tool_calls\"') > 0 THEN jsonb_path_query_array("
    "prompt::jsonb, '$[*].tool_calls[*].function.*') ELSE '[]' END)::text"
)
_CONTENT_CHARS = (
    "(SELECT coalesce(sum(char_length(message.value ->> 'content')), 0)"
    " FROM jsonb_array_elements(prompt::jsonb) message)"
)
# Upper case and strpos take half the time of ILIKE.
_ANY_ANSWER = (
    "EXISTS (SELECT FROM jsonb_array_elements_text(answer::jsonb) one"
    " WHERE strpos(upper(one), upper(%s)) > 0)"
)
_TEXT = (
    f"(CASE WHEN is_chat THEN strpos(upper({_CONTENTS}), upper(%s)) > 0"
    " ELSE strpos(upper(prompt), upper(%s)) > 0 END"
    f" OR CASE WHEN answer_is_list THEN {_ANY_ANSWER}"
    " ELSE strpos(upper(answer), upper(%s)) > 0 END)"
)
PROMPT_CHARS = (
    f"(CASE WHEN is_chat THEN {_CONTENT_CHARS} ELSE char_length(prompt)::bigint END)"
)

ANSWERS = [("", "any answer"), ("yes", "has an answer"), ("no", "has no answer")]
KINDS = [("", "text or chat"), ("text", "text"), ("chat", "chat messages")]
SORTS = {
    "position": "row number",
    "prompt_length": "prompt length",
    "answer": "answer",
    "answer_length": "answer length",
}
COLUMN = "column:"  # before the name of a column to sort by, or a path
MAX_PATH_CHARS = 200

BYTES = np.dtype("<u4")  # of a position; a field may have a million
# Read at a time, whichever comes first: one row may have 8 MiB.
ROWS_AT_ONCE, BYTES_AT_ONCE = 500, 2 * 2**20
# What is read while a page is made, in a fifth of a second.
MAX_ROWS_OF_PAGE, MAX_BYTES_OF_PAGE = 1_000, 8 * 2**20


class RowFilterForm(forms.Form):
    """An invalid value is an error, and ignored."""

    q = forms.CharField(
        required=False, max_length=500, strip=False, label="Search prompts and answers"
    )
    answer = forms.ChoiceField(required=False, choices=ANSWERS, label="Answer")
    kind = forms.ChoiceField(required=False, choices=KINDS, label="Prompt type")
    min_chars = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        label="Min. prompt characters",
    )
    max_chars = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="Max. prompt characters"
    )
    column = forms.ChoiceField(required=False, label="Column")
    value = forms.CharField(required=False, max_length=500, label="Value equals")
    sort = forms.ChoiceField(required=False, label="Sort by")

    def __init__(self, version: DatasetVersion, query: QueryDict) -> None:
        # PostgreSQL refuses NUL in any text it is sent.
        clean = query.copy()
        for name, values in query.lists():
            clean.setlist(name, [value.replace("\x00", "") for value in values])
        super().__init__(clean)
        self._version = version
        columns = [*version.mapping.get("columns", [])]
        # Those of the query that may be paths into one; a list of choices has none.
        sort = query.get("sort", "").removeprefix("-")
        paths = dict.fromkeys([query.get("column", ""), sort.removeprefix(COLUMN)])
        columns += [
            path
            for path in paths
            if "." in path and len(path) <= MAX_PATH_CHARS and version.path_of(path)[1:]
        ]
        sorts = list(SORTS.items())
        sorts += [(f"{COLUMN}{name}", f"column {name}") for name in columns]
        turned = [(f"-{key}", f"{name}, descending") for key, name in sorts]
        both = [pair for pairs in zip(sorts, turned, strict=True) for pair in pairs]
        self._sorts = dict(both)
        set_choices(self, "sort", both)
        set_choices(self, "column", [("", "any"), *((name, name) for name in columns)])
        if not columns:
            del self.fields["column"], self.fields["value"]
        for field in self.fields.values():
            chosen = isinstance(field.widget, forms.Select)
            field.widget.attrs["class"] = "form-select" if chosen else "form-control"
        search = self.fields["q"]
        search.widget.attrs |= {"type": "search", "placeholder": search.label}

    @classmethod
    def read(cls, version: DatasetVersion, query: QueryDict) -> Self:
        form = cls(version, query)
        form.is_valid()
        return form

    def clean(self) -> dict[str, Any]:
        low, high = self._value("min_chars"), self._value("max_chars")
        if low is not None and high is not None and low > high:
            self.add_error(
                "max_chars",
                forms.ValidationError(
                    f"The maximum {high} is below the minimum {low}. Swap the two, or "
                    "leave one empty.",
                    code="below_minimum",
                ),
            )
        return self.cleaned_data

    def _value(self, name: str) -> Any:
        value = self.cleaned_data.get(name)
        return None if value == "" else value

    @property
    def text(self) -> str:
        return self._value("q") or ""

    @property
    def order_key(self) -> str:
        """A key of SORTS or a column's behind COLUMN, without its direction."""
        return (self._value("sort") or "position").removeprefix("-")

    @property
    def is_reversed(self) -> bool:
        return (self._value("sort") or "").startswith("-")

    @property
    def is_narrowed(self) -> bool:
        return bool(self.conditions)

    @property
    def is_active(self) -> bool:
        return self.is_narrowed or bool(self._value("sort"))

    @property
    def query(self) -> str:
        """The query string of this view."""
        return self._query()

    def _query(self, without: tuple[str, ...] = ()) -> str:
        values = {name: self._value(name) for name in self.fields}
        values |= dict.fromkeys(without)
        if values["sort"] == "position":
            del values["sort"]  # as it is without
        return urlencode({k: v for k, v in values.items() if v is not None})

    @property
    def description(self) -> str:
        """The view as text."""
        return ", ".join(text for text, _ in self._parts()) or "all rows"

    @property
    def chips(self) -> list[tuple[str, str]]:
        """Filters as text, each with the query string of the view without it."""
        return [(text, self._query(without=names)) for text, names in self._parts()]

    def _parts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each filter as text, and its fields."""
        if self.text:
            yield f"“{self.text}” in prompt or answer", ("q",)
        for name, choices in (("answer", ANSWERS), ("kind", KINDS)):
            if filter_value := self._value(name):
                yield dict(choices)[filter_value], (name,)
        if (low := self._value("min_chars")) is not None:
            yield f"prompts of at least {low:,} characters", ("min_chars",)
        if (high := self._value("max_chars")) is not None:
            yield f"prompts of at most {high:,} characters", ("max_chars",)
        if column := self._value("column"):
            value = self.cleaned_data.get("value") or ""
            yield f"{column} = {value}", ("column", "value")
        sort = self._value("sort")
        if sort and sort != "position":
            yield f"sorted by {self._sorts[sort]}", ("sort",)

    @property
    def conditions(self) -> list[tuple[str, list[Any]]]:
        """SQL conditions on a row and their parameters, joined by AND."""
        parts: list[tuple[str, list[Any]]] = []
        # Cheap conditions first.
        if has_answer := self._value("answer"):
            test = "IS NOT NULL" if has_answer == "yes" else "IS NULL"
            parts.append((f"answer {test}", []))
        if kind := self._value("kind"):
            parts.append(("is_chat = %s", [kind == "chat"]))
        if (low := self._value("min_chars")) is not None:
            parts.append((f"{PROMPT_CHARS} >= %s", [low]))
        if (high := self._value("max_chars")) is not None:
            parts.append((f"{PROMPT_CHARS} <= %s", [high]))
        if column := self._value("column"):
            value = self.cleaned_data.get("value") or ""
            # NULL is JSON's null, or no such key.
            path = self._version.path_of(column)
            parts.append(("coalesce(columns #>> %s, '') = %s", [path, value]))
        if self.text:
            # As in the JSON of a chat prompt.
            escaped = json.dumps(self.text, ensure_ascii=False)[1:-1]
            parts.append((_TEXT, [escaped, *[self.text] * 3]))
        return parts


def as_bytes(positions: NDArray[np.int64]) -> bytes:
    return positions.astype(BYTES).tobytes()


def read_positions(stored: Model, field: str, first: int, number: int) -> list[int]:
    """Part of the field's positions; one query, which transfers only that part."""
    part = Func(
        F(field),
        Value(first * BYTES.itemsize + 1),
        Value(number * BYTES.itemsize),
        function="substring",
        output_field=BinaryField(),
    )
    same = type(stored)._default_manager.filter(pk=stored.pk)
    data = bytes(same.values_list(part, flat=True).get())
    positions: list[int] = np.frombuffer(data, BYTES).tolist()
    return positions


def read_rows_in_order(
    version: DatasetVersion, positions: Sequence[int]
) -> list[DatasetRow]:
    """Return the rows at these positions, in their order."""
    rows = {row.position: row for row in version.rows.filter(position__in=positions)}
    return [rows[position] for position in positions]


def read_rows_at(rows: QuerySet[DatasetRow], positions: range) -> Iterator[DatasetRow]:
    """Rows at rising positions. Memory holds two megabytes, or one row."""
    at = 0
    while at < len(positions):
        part = positions[at : at + ROWS_AT_ONCE]
        at += len(part)  # in case all of them were deleted from the database
        before = Window(Sum(_size()), order_by="position", frame=RowRange(end=-1))
        where = (
            {"position__gte": part[0], "position__lte": part[-1]}
            if part.step == 1
            else {"position__in": list(part)}
        )
        for row in (
            rows.filter(**where)
            .order_by("position")
            .annotate(before=Coalesce(before, 0))
            .filter(before__lte=BYTES_AT_ONCE)
        ):
            at = positions.index(row.position) + 1
            yield row


def are_few(*versions: DatasetVersion, positions: Sequence[int] = ()) -> bool:
    """Return whether the rows, or those at these positions, can be read in a
    request.
    """
    num_rows = len(positions) or sum(version.num_rows for version in versions)
    if num_rows > MAX_ROWS_OF_PAGE:
        return False
    rows = DatasetRow.objects.filter(version__in=versions)
    if positions:
        rows = rows.filter(position__in=positions)
    num_bytes: int = rows.aggregate(sum=Coalesce(Sum(_size()), 0))["sum"]
    return num_bytes <= MAX_BYTES_OF_PAGE


def _size() -> Func:
    """Return the bytes of a row."""
    columns = Cast("columns", TextField())
    texts = (F("prompt"), Coalesce(F("answer"), Value("")), columns)
    num_bytes = BigIntegerField()
    prompt, answer, rest = (
        Func(text, function="octet_length", output_field=num_bytes) for text in texts
    )
    return Cast(prompt + answer + rest, num_bytes)
