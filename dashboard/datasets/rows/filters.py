"""Which rows of a version are wanted and in which order, as the address says it."""

from __future__ import annotations

import json
from typing import Any, Self
from urllib.parse import urlencode

from django import forms
from django.http import QueryDict

from dashboard.datasets.models import DatasetVersion
from dashboard.project.forms import offer

# A chat prompt is kept as JSON: what counts is what its messages say.
_SAID = "jsonb_path_query_array(prompt::jsonb, '$[*].content')::text"
_SAID_CHARS = (
    "(SELECT sum(char_length(said.value ->> 'content'))"
    " FROM jsonb_array_elements(prompt::jsonb) said)"
)
# Upper case and strpos take half the time of ILIKE.
_TEXT = (
    f"(CASE WHEN is_chat THEN strpos(upper({_SAID}), upper(%s)) > 0"
    " ELSE strpos(upper(prompt), upper(%s)) > 0 END"
    " OR strpos(upper(answer), upper(%s)) > 0)"
)
PROMPT_CHARS = (
    f"(CASE WHEN is_chat THEN {_SAID_CHARS} ELSE char_length(prompt)::bigint END)"
)

ANSWERS = [("", "any answer"), ("yes", "has an answer"), ("no", "has no answer")]
KINDS = [("", "text or chat"), ("text", "text"), ("chat", "chat messages")]
SORTS = {
    "position": "row number",
    "prompt_length": "length of prompt",
    "answer": "answer",
    "answer_length": "length of answer",
}
COLUMN = "column:"  # before the name of a column to sort by


class RowFilterForm(forms.Form):
    """A bad value is named, and left out."""

    q = forms.CharField(
        required=False, max_length=500, strip=False, label="Prompt or answer contains"
    )
    answer = forms.ChoiceField(required=False, choices=ANSWERS, label="Answer")
    kind = forms.ChoiceField(required=False, choices=KINDS, label="Prompt is")
    min_chars = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        label="Prompt length from",
    )
    max_chars = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="to, in characters"
    )
    column = forms.ChoiceField(required=False, label="Column")
    value = forms.CharField(required=False, max_length=500, label="equals")
    sort = forms.ChoiceField(required=False, label="Order by")

    def __init__(self, version: DatasetVersion, query: QueryDict) -> None:
        super().__init__(_without_nul(query))
        columns = version.mapping.get("columns", [])
        sorts = list(SORTS.items())
        sorts += [(f"{COLUMN}{name}", f"column {name}") for name in columns]
        turned = [(f"-{key}", f"{name}, descending") for key, name in sorts]
        both = [pair for pairs in zip(sorts, turned, strict=True) for pair in pairs]
        self._sorts = dict(both)
        offer(self, "sort", both)
        offer(self, "column", [("", "any"), *((name, name) for name in columns)])
        if not columns:
            del self.fields["column"], self.fields["value"]
        for field in self.fields.values():
            chosen = isinstance(field.widget, forms.Select)
            field.widget.attrs["class"] = "form-select" if chosen else "form-control"

    @classmethod
    def read(cls, version: DatasetVersion, query: QueryDict) -> Self:
        form = cls(version, query)
        form.is_valid()
        return form

    def clean(self) -> dict[str, Any]:
        low, high = self._given("min_chars"), self._given("max_chars")
        if low is not None and high is not None and low > high:
            self.add_error(
                "max_chars",
                f"No prompt is at least {low} and at most {high} characters long. "
                "Swap the two, or leave one empty.",
            )
        return self.cleaned_data

    def _given(self, name: str) -> Any:
        found = self.cleaned_data.get(name)
        return None if found == "" else found

    @property
    def text(self) -> str:
        return self._given("q") or ""

    @property
    def order_key(self) -> str:
        """A key of SORTS or a column's behind COLUMN, without its direction."""
        return (self._given("sort") or "position").removeprefix("-")

    @property
    def is_turned(self) -> bool:
        return (self._given("sort") or "").startswith("-")

    @property
    def is_narrowed(self) -> bool:
        return bool(self.conditions)

    @property
    def is_asked(self) -> bool:
        return self.is_narrowed or bool(self._given("sort"))

    @property
    def query(self) -> str:
        """The part of the address that shows this view again."""
        given = {name: self._given(name) for name in self.fields}
        if given["sort"] == "position":
            del given["sort"]  # as it is without
        return urlencode({k: v for k, v in given.items() if v is not None})

    @property
    def words(self) -> str:
        """The view in words."""
        said = [f"“{self.text}” in prompt or answer"] if self.text else []
        said += [
            dict(choices)[wanted]
            for name, choices in (("answer", ANSWERS), ("kind", KINDS))
            if (wanted := self._given(name))
        ]
        if (low := self._given("min_chars")) is not None:
            said.append(f"prompts of {low:,} characters or more")
        if (high := self._given("max_chars")) is not None:
            said.append(f"prompts of {high:,} characters or fewer")
        if column := self._given("column"):
            said.append(f"{column} = {self.cleaned_data.get('value') or ''}")
        sort = self._given("sort")
        if sort and sort != "position":
            said.append(f"by {self._sorts[sort]}")
        return ", ".join(said) or "all rows"

    @property
    def conditions(self) -> list[tuple[str, list[Any]]]:
        """SQL about one row, all of which must hold, and what stands in it."""
        found: list[tuple[str, list[Any]]] = []
        # Cheap ones first, which spare a row the dear ones.
        if has_answer := self._given("answer"):
            wanted = "IS NOT NULL" if has_answer == "yes" else "IS NULL"
            found.append((f"answer {wanted}", []))
        if kind := self._given("kind"):
            found.append(("is_chat = %s", [kind == "chat"]))
        if (low := self._given("min_chars")) is not None:
            found.append((f"{PROMPT_CHARS} >= %s", [low]))
        if (high := self._given("max_chars")) is not None:
            found.append((f"{PROMPT_CHARS} <= %s", [high]))
        if column := self._given("column"):
            value = self.cleaned_data.get("value") or ""
            # NULL is JSON's null, or no such key.
            found.append(("coalesce(columns ->> %s, '') = %s", [column, value]))
        if self.text:
            said = _as_in_json(self.text)
            found.append((_TEXT, [said, self.text, self.text]))
        return found


def _without_nul(query: QueryDict) -> QueryDict:
    """PostgreSQL refuses NUL in any text it is sent."""
    clean = query.copy()
    for name, values in query.lists():
        clean.setlist(name, [value.replace("\x00", "") for value in values])
    return clean


def _as_in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
