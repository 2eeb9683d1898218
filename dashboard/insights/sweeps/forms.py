from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.insights.sweeps.outcomes import KINDS, LAST
from dashboard.runs.models import REWARD
from dashboard.samples.forms import FilterForm


class SweepForm(FilterForm):
    """What is shown, held in the address. A bad value gives way to its default."""

    defaults: ClassVar[dict[str, Any]] = {"metric": REWARD, "of": LAST}

    metric = forms.CharField(required=False, max_length=120)
    of = forms.ChoiceField(required=False, choices=KINDS)
    # Of the scatter; empty: the setting that weighs most.
    x = forms.CharField(required=False, max_length=200)
