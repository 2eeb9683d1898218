from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.runs.models import REWARD
from dashboard.samples.forms import FilterForm


class CompareForm(FilterForm):
    """What is shown, held in the address. A bad value gives way to its default."""

    defaults: ClassVar[dict[str, Any]] = {
        "metric": REWARD,
        "x": "step",
        "smooth": 0.6,
        "y": "linear",
        "settings": "differing",
    }

    metric = forms.CharField(required=False, max_length=120)
    x = forms.ChoiceField(
        required=False,
        choices=[
            ("step", "step"),
            ("time", "wall time"),
            ("samples", "completions sampled"),
        ],
    )
    smooth = forms.FloatField(required=False, min_value=0, max_value=0.99)
    y = forms.ChoiceField(required=False, choices=[("linear", ""), ("log", "")])
    settings = forms.ChoiceField(
        required=False, choices=[("differing", ""), ("all", "")]
    )
    q = forms.CharField(required=False, max_length=200)
    prompt = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
