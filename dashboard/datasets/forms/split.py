from __future__ import annotations

from typing import Any

from django import forms

from dashboard.datasets.forms.name import NameField, free_name
from dashboard.datasets.models import DatasetVersion
from dashboard.project.forms import offer

NEEDED = {"share": ("share", "seed"), "column": ("column",)}


class SplitForm(forms.Form):
    """What of a version is held out, and how the two halves are named."""

    by = forms.ChoiceField(
        label="Held out",
        choices=[("share", "a share of the rows")],
        initial="share",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    share = forms.FloatField(
        label="Share in %",
        required=False,
        min_value=0.001,
        max_value=99.999,
        initial=10,
        widget=forms.NumberInput(attrs={"class": "form-control", "step": "any"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        initial=0,
        help_text="The same version, share and seed always give the same halves.",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    column = forms.ChoiceField(
        label="Column",
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    value = forms.CharField(
        label="Value",
        required=False,
        max_length=500,
        strip=False,
        help_text="Rows with exactly this value in the column are held out.",
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    train_name = NameField()
    eval_name = NameField()

    def __init__(self, version: DatasetVersion, data: Any = None) -> None:
        self.team = version.dataset.team
        name = version.dataset.name[:70]
        initial = {"train_name": f"{name} train", "eval_name": f"{name} eval"}
        super().__init__(data, initial=initial)
        self.fields["train_name"].label = "Name of the train half"
        self.fields["eval_name"].label = "Name of the held-out half"
        columns = version.mapping.get("columns", [])
        if columns:
            offer(self, "column", [(name, name) for name in columns])
            by = [("share", "a share of the rows"), ("column", "a column's value")]
            offer(self, "by", by)
        else:
            del self.fields["column"], self.fields["value"]

    def clean_train_name(self) -> str:
        return free_name(self.team, self.cleaned_data["train_name"])

    def clean_eval_name(self) -> str:
        name = free_name(self.team, self.cleaned_data["eval_name"])
        if name == self.cleaned_data.get("train_name"):
            raise forms.ValidationError(
                f'"{name}" is the name of the train half. Choose another for this one.'
            )
        return name

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        for name in NEEDED.get(given.get("by", ""), ()):
            if given.get(name) in (None, "") and name not in self.errors:
                self.add_error(name, f"The {name} is missing. Give one.")
        return given

    @property
    def rule(self) -> dict[str, Any]:
        """As VersionSplit keeps it, of a valid form."""
        given = self.cleaned_data
        names = (
            ("by", "share", "seed")
            if given["by"] == "share"
            else ("by", "column", "value")
        )
        return {name: given[name] for name in names}
