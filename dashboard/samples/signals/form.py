from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.samples.forms import FilterForm

MAP_ORDERS = [
    ("dataset", "prompt number"),
    ("difficulty", "mean reward, lowest first"),
    ("first_seen", "first step that sampled it"),
]


class SignalForm(FilterForm):
    """Which steps the signal charts show, and how the map's rows are ordered."""

    defaults: ClassVar[dict[str, Any]] = {"rows": "dataset"}

    rows = forms.ChoiceField(required=False, choices=MAP_ORDERS, label="Rows by")
    first_step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    last_step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)

    def clean(self) -> dict[str, Any] | None:
        self.refuse_empty_range("first_step", "last_step", "step")
        return super().clean()

    @property
    def steps(self) -> dict[str, int | None]:
        return {"first": self.value("first_step"), "last": self.value("last_step")}
