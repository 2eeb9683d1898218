"""Choices that a form knows only once it is made: a team's, a file's, a version's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet

LARGEST = 2**31 - 1  # that an integer column holds


def set_choices(
    form: forms.Form, name: str, choices: Sequence[tuple[str, str]] | QuerySet[Any]
) -> None:
    """Restrict the field to these choices."""
    field = form.fields[name]
    if isinstance(choices, QuerySet):
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = choices
    else:
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices
