"""Forms of a new recipe and of the workbench."""

from __future__ import annotations

from typing import Any

from django import forms

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.project.forms import set_choices
from dashboard.rewards.models import RewardRecipe
from dashboard.rewards.workbench import NUM_ROWS

LARGEST = 2**31 - 1


class NewRecipeForm(forms.Form):
    name = forms.CharField(
        label="Name",
        max_length=80,
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    description = forms.CharField(
        label="Description",
        required=False,
        max_length=2_000,
        widget=forms.Textarea(attrs={"class": "form-control", "rows": 2}),
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        self.team = team
        super().__init__(*args, **kwargs)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if RewardRecipe.objects.filter(team=self.team, name=name).exists():
            raise forms.ValidationError(
                f'{self.team} already has a recipe named "{name}". Choose another '
                "name, or edit that recipe.",
                code="name_taken",
            )
        return name


class TryForm(forms.Form):
    """Which rows the workbench shows. Its fields live inside the editor's form."""

    prefix = "try"

    version = forms.ModelChoiceField(
        label="Dataset version",
        queryset=DatasetVersion.objects.none(),
        required=False,
        empty_label=None,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    offset = forms.IntegerField(
        label="First row",
        required=False,
        min_value=0,
        max_value=LARGEST,
        initial=0,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        required=False,
        min_value=0,
        max_value=LARGEST,
        help_text=f"Draws {NUM_ROWS} random rows. Empty: consecutive rows.",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def __init__(
        self, team: Team, *args: Any, shown: DatasetVersion | None = None, **kwargs: Any
    ) -> None:
        """Until a version is chosen, the rows are of `shown`, else of the newest."""
        super().__init__(*args, **kwargs)
        versions = list_versions(team)
        set_choices(self, "version", versions)
        self.shown = shown or versions.first()
        self.initial["version"] = self.shown
