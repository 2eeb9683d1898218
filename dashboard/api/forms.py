from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from dashboard.accounts.models import Membership
from dashboard.api.models import Scope
from dashboard.api.tokens import may_use

LIFETIMES = [("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year")]
FOR_EVER = ("", "never")
ABOUT = {
    Scope.READ: "reads everything of the team",
    Scope.WRITE: "reads, and does what a member may, such as upload, launch and stop",
    Scope.INGEST: "sends events of runs trained elsewhere; reads nothing",
    Scope.ADMIN: "all of these, and what only an admin may do",
}


class TokenForm(forms.Form):
    """Offers the scopes that the person's role allows."""

    name = forms.CharField(
        max_length=80, label="Name", help_text="Where it is used: “nightly sweep”."
    )
    scopes = forms.MultipleChoiceField(
        label="May",
        error_messages={"required": "Choose what the token may do."},
    )
    lifetime = forms.ChoiceField(
        label="Ends after", choices=[*LIFETIMES, FOR_EVER], required=False
    )

    def __init__(self, membership: Membership, data: Any = None) -> None:
        super().__init__(data)
        field = self.fields["scopes"]
        assert isinstance(field, forms.MultipleChoiceField)
        self.allowed = [scope for scope in Scope if may_use(membership, scope)]
        field.choices = [(scope.value, scope.value) for scope in self.allowed]

    def clean_name(self) -> str:
        name = " ".join(str(self.cleaned_data["name"]).split())
        if not name:
            raise forms.ValidationError("A token needs a name; got only spaces.")
        return name

    @property
    def offered(self) -> list[tuple[str, str, bool]]:
        """Each scope, what it is for, and whether it is chosen."""
        chosen = self["scopes"].value() or ([] if self.is_bound else [Scope.READ])
        return [(one.value, ABOUT[one], one in chosen) for one in self.allowed]

    @property
    def lifetimes(self) -> list[tuple[str, str, bool]]:
        chosen = self["lifetime"].value() if self.is_bound else "90"
        return [(v, title, v == chosen) for v, title in [*LIFETIMES, FOR_EVER]]

    @property
    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["lifetime"]
        return timezone.now() + timedelta(days=int(days)) if days else None
