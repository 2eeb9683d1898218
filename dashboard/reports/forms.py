from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.reports.block_lines import KINDS
from dashboard.runs.models import REWARD
from dashboard.samples.forms import FilterForm


class InsertForm(FilterForm):
    """Which block is to be written, as far as it is chosen."""

    defaults: ClassVar[dict[str, Any]] = {"kind": "chart", "metric": REWARD, "q": ""}

    kind = forms.ChoiceField(required=False, choices=[(kind, kind) for kind in KINDS])
    q = forms.CharField(required=False, max_length=200)
    metric = forms.CharField(required=False, max_length=120)
    step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    group = forms.CharField(required=False, max_length=40)
    pinned = forms.BooleanField(required=False)


class ListForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"q": "", "page": 1}

    q = forms.CharField(required=False, max_length=200)
    page = forms.IntegerField(required=False, min_value=1)
