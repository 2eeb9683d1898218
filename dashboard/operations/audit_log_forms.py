"""The audit log's filters: every field is a parameter of the address."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

from django import forms
from django.db.models import Exists, OuterRef, QuerySet

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.operations.audit_log import known_values, label_of

ITSELF = "cohort"  # what no person did
ERASED = "erased"


def _select() -> forms.Select:
    return forms.Select(attrs={"class": "form-select"})


def _input(kind: str, **attrs: Any) -> forms.TextInput:
    widget = forms.TextInput(attrs={"class": "form-control", **attrs})
    widget.input_type = kind
    return widget


class FilterForm(forms.Form):
    """A filter that cannot be read is an error, and finds nothing."""

    by = forms.ChoiceField(label="Who", required=False, widget=_select())
    verb = forms.ChoiceField(label="Action", required=False, widget=_select())
    kind = forms.ChoiceField(label="Object type", required=False, widget=_select())
    number = forms.IntegerField(
        label="Object ID",
        required=False,
        min_value=1,
        max_value=2**63 - 1,
        widget=_input("number", min=1, placeholder="any"),
    )
    since = forms.DateField(label="From", required=False, widget=_input("date"))
    until = forms.DateField(label="To", required=False, widget=_input("date"))

    def __init__(self, data: Any, *, team: Team) -> None:
        super().__init__(data)
        self.entries = AuditEntry.objects.filter(team=team)
        # Everyone who did something, including former members; then Cohort and erased
        # people.
        own = self.entries.filter(actor=OuterRef("pk"))
        acted = User.objects.filter(Exists(own)).order_by("username")
        people = [(str(user.pk), f"{user} ({user.username})") for user in acted]
        people += [(ITSELF, "Cohort"), (ERASED, "Erased person")]
        self._offer("by", [("", "Anyone"), *people])
        verbs = [(verb, verb) for verb in known_values(team, "verb")]
        self._offer("verb", [("", "Anything"), *verbs])
        kinds = [(kind, label_of(kind)) for kind in known_values(team, "object_type")]
        self._offer("kind", [("", "Anything"), *kinds])

    def _offer(self, name: str, choices: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        since, until = data.get("since"), data.get("until")
        if since and until and since > until:
            message = f"The end must not be before {since:%Y-%m-%d}."
            self.add_error("until", forms.ValidationError(message, code="before_start"))
        return data

    def narrow(self) -> QuerySet[AuditEntry]:
        """Apply the filters; the newest first."""
        entries = self.entries.select_related("actor").order_by("-id")
        if not self.is_valid():
            return entries.none()
        data = self.cleaned_data
        if data["by"] == ITSELF:
            entries = entries.filter(actor=None, is_erased=False)
        elif data["by"] == ERASED:
            entries = entries.filter(is_erased=True)
        elif data["by"]:
            entries = entries.filter(actor=int(data["by"]))
        filters = {
            "verb": data["verb"],
            "object_type": data["kind"],
            "object_id": data["number"],
            "created_at__gte": data["since"]
            and datetime.combine(data["since"], time(), tzinfo=UTC),
            "created_at__lte": data["until"]
            and datetime.combine(data["until"], time.max, tzinfo=UTC),
        }
        return entries.filter(
            **{name: value for name, value in filters.items() if value}
        )

    @property
    def is_narrowed(self) -> bool:
        return any(self.data.get(name) for name in self.fields)
