"""The pages' forms, filled in by a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.forms import BaseForm
from django.http import QueryDict

from dashboard.api.problems import Problem


def query_of(values: Mapping[str, Any]) -> QueryDict:
    """As a browser would send it: what is not given is left out."""
    query = QueryDict(mutable=True)
    for name, value in values.items():
        if isinstance(value, bool):
            if value:
                query[name] = "on"
        elif isinstance(value, list):
            query.setlist(name, [str(each) for each in value])
        elif value is not None and value != "":
            query[name] = str(value)
    return query


def refuse_errors(
    form: BaseForm, *, place: str = "query", names: Mapping[str, str] | None = None
) -> None:
    """422 that names what the form does not take; `names`: of fields called otherwise.

    What a form says of all fields together is of the whole `place`.
    """
    errors = [
        (_field(place, name, names or {}), str(text))
        for name, texts in form.errors.items()
        for text in texts
    ]
    if errors:
        raise Problem(422, errors[0][1], errors=errors)


def _field(place: str, name: str, names: Mapping[str, str]) -> str:
    return place if name == "__all__" else f"{place}.{names.get(name, name)}"
