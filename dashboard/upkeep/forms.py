from __future__ import annotations

from django import forms

from dashboard.upkeep.models import KEPT_DAYS, MOST_COMPLETION_DAYS


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        min_value=1,
        max_value=KEPT_DAYS,
        label="Days in the trash",
        help_text=f"1 to {KEPT_DAYS}. Then runs and datasets are deleted for good.",
    )
    completion_days = forms.IntegerField(
        min_value=1,
        max_value=MOST_COMPLETION_DAYS,
        required=False,
        label="Days of completions",
        help_text=f"1 to {MOST_COMPLETION_DAYS:,} after a run's end. Empty: for good.",
    )
