from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.insights.bands import IQM, MEAN
from dashboard.insights.sets import SEEDS
from dashboard.runs.models import REWARD
from dashboard.samples.forms import FilterForm

MOST = 2**31 - 1


class CompareForm(FilterForm):
    """What is shown, held in the address. A bad value gives way to its default."""

    defaults: ClassVar[dict[str, Any]] = {
        "metric": REWARD,
        "x": "step",
        "y": "linear",
        "settings": "differing",
        "by": SEEDS,
        "stat": MEAN,
    }

    metric = forms.CharField(required=False, max_length=120)
    x = forms.ChoiceField(
        required=False,
        choices=[
            ("step", "step"),
            ("time", "wall time"),
            ("tokens", "completion tokens"),
            ("samples", "completions sampled"),
        ],
    )
    smooth = forms.FloatField(required=False, min_value=0, max_value=0.99)
    y = forms.ChoiceField(required=False, choices=[("linear", ""), ("log", "")])
    settings = forms.ChoiceField(
        required=False, choices=[("differing", ""), ("all", "")]
    )
    by = forms.CharField(required=False, max_length=200)
    stat = forms.ChoiceField(
        required=False,
        choices=[
            (MEAN, "mean ± 95 % interval"),
            (IQM, "IQM, bootstrap interval"),
        ],
    )
    better = forms.ChoiceField(
        required=False,
        choices=[
            ("higher", "higher is better"),
            ("lower", "lower is better"),
            ("neither", "neither is better"),
        ],
    )
    window = forms.IntegerField(required=False, min_value=1, max_value=MOST)
    paired = forms.BooleanField(required=False)
    each = forms.BooleanField(required=False)
    q = forms.CharField(required=False, max_length=200)
    prompt = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    step = forms.IntegerField(required=False, min_value=0, max_value=MOST)
