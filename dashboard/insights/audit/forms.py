from __future__ import annotations

from django import forms

from dashboard.samples.forms import FilterForm


class AuditForm(FilterForm):
    """Where the audit looks for a change, and how far to its sides."""

    at = forms.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, label="Compare around step"
    )
    width = forms.IntegerField(
        required=False, min_value=3, max_value=100_000, label="Points on each side"
    )
