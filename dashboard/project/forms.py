"""Form fields as pages style them, and choices known once a form is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet

LARGEST = 2**31 - 1  # that an integer column holds


def number_field(
    label: str, low: int | None = None, high: int | None = LARGEST, **options: Any
) -> forms.IntegerField:
    """Make a field of whole numbers."""
    return forms.IntegerField(
        label=label,
        min_value=low,
        max_value=high,
        widget=number_input(),
        **options,
    )


def float_field(
    label: str, low: float | None = None, high: float | None = None, **options: Any
) -> forms.FloatField:
    return forms.FloatField(
        label=label,
        min_value=low,
        max_value=high,
        widget=number_input(step="any"),
        **options,
    )


def select_field(label: str, **options: Any) -> forms.ChoiceField:
    return forms.ChoiceField(label=label, widget=select(), **options)


def row_field(
    label: str, empty: str | None, **options: Any
) -> forms.ModelChoiceField[Any]:
    """Make a field of database rows, which `set_choices` brings."""
    return forms.ModelChoiceField(
        label=label, queryset=None, empty_label=empty, widget=select(), **options
    )


def select() -> forms.Select:
    return forms.Select(attrs={"class": "form-select"})


def text_input(*, css: str = "form-control", **attrs: Any) -> forms.TextInput:
    return forms.TextInput(attrs={"class": css, **attrs})


def number_input(**attrs: Any) -> forms.NumberInput:
    return forms.NumberInput(attrs={"class": "form-control", **attrs})


def set_choices(
    form: forms.BaseForm, name: str, choices: Sequence[tuple[str, str]] | QuerySet[Any]
) -> None:
    """Restrict the field to these choices."""
    field = form.fields[name]
    if isinstance(choices, QuerySet):
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = choices
    else:
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices
