"""The name of a dataset, which no other of the team has."""

from __future__ import annotations

from django import forms

from dashboard.accounts.models import Team
from dashboard.datasets.models import Dataset

TAKEN = "taken"


def free_name(team: Team, name: str) -> str:
    """The name, when the team has no dataset of that name."""
    taken = Dataset.objects.filter(team=team, name=name, trashed_at=None).first()
    if taken is not None:
        raise forms.ValidationError(
            '%(team)s already has a dataset named "%(name)s". Choose another name, or '
            "upload this as a new version from that dataset's page.",
            code=TAKEN,
            params={"team": team, "name": name, "dataset": taken},
        )
    return name


class NameField(forms.CharField):
    def __init__(self) -> None:
        super().__init__(
            label="Name",
            max_length=80,
            widget=forms.TextInput(attrs={"class": "form-control"}),
        )


class RestoreForm(forms.Form):
    name = NameField()
