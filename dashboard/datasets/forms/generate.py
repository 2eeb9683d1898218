from __future__ import annotations

from typing import Any

from django import forms

from dashboard.accounts.models import Team
from dashboard.datasets.forms.name import NameField, free_name


class GenerateForm(forms.Form):
    name = NameField()
    size = forms.IntegerField(
        label="Rows",
        min_value=1,
        max_value=20_000,
        initial=1_000,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        min_value=0,
        max_value=2**31 - 1,
        initial=0,
        help_text="The same task, rows and seed always give the same prompts.",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        self.team = team
        super().__init__(*args, **kwargs)

    def clean_name(self) -> str:
        return free_name(self.team, self.cleaned_data["name"])
