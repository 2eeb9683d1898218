"""Which steps are taken."""

from __future__ import annotations

from dataclasses import dataclass

from django import forms
from django.http import QueryDict
from django.utils.http import urlencode

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Span:
    first: int = 0
    last: int = LARGEST

    @property
    def is_all(self) -> bool:
        return self == Span()


class SpanForm(forms.Form):
    """Steps in the address. A bad number is named, and nothing is taken."""

    first_step = forms.IntegerField(
        required=False, min_value=0, max_value=LARGEST, label="From step"
    )
    last_step = forms.IntegerField(
        required=False, min_value=0, max_value=LARGEST, label="To step"
    )

    @classmethod
    def read(cls, query: QueryDict) -> SpanForm:
        form = cls(query)
        for field in form.fields.values():
            field.widget.attrs["class"] = "form-control"
        form.is_valid()
        return form

    def clean(self) -> None:
        first, last = (self.cleaned_data.get(n) for n in self.fields)
        if first is not None and last is not None and first > last:
            self.add_error(
                "last_step",
                f"No step is at least {first} and at most {last}. Swap the two, or "
                "leave one empty.",
            )

    @property
    def span(self) -> Span:
        first = self.cleaned_data.get("first_step")
        last = self.cleaned_data.get("last_step")
        return Span(first or 0, LARGEST if last is None else last)

    @property
    def query(self) -> str:
        """Of the files' addresses; "?…" or empty."""
        given = {n: self.cleaned_data.get(n) for n in self.fields}
        told = {n: value for n, value in given.items() if value is not None}
        return f"?{urlencode(told)}" if told else ""
