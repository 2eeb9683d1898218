from __future__ import annotations

from django import forms

from dashboard.upkeep.models import KEPT_DAYS


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        min_value=1,
        max_value=KEPT_DAYS,
        label="Days in the trash",
        help_text=f"1 to {KEPT_DAYS}. Then runs and datasets are deleted for good.",
    )
