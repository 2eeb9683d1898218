"""Forms of rules, mutes, channels, and the filters of the alerts page."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.core.mail.message import sanitize_address
from django.http import QueryDict
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.alerts.messages import read_address
from dashboard.alerts.models import OWN_KINDS, AlertState, Channel, Event, Rule
from dashboard.alerts.queries import describe
from dashboard.project.database import read_whole
from dashboard.project.forms import (
    number_input,
    row_field,
    select_field,
    set_choices,
    text_input,
)
from dashboard.runs.models import Run
from trainer.alerts.conditions import MAX_STEPS, Kind

KIND_LABELS = {
    Kind.ABOVE: "is above",
    Kind.BELOW: "is below",
    Kind.CHANGES: "changes by more than …%",
    Kind.MISSING: "has no value",
}
WITH_THRESHOLD = (Kind.ABOVE, Kind.BELOW, Kind.CHANGES)
WITHOUT_THRESHOLD = (Kind.MISSING, Kind.CONSTANT, Kind.WARNED)
NUM_RUNS = 100
MUTES = {
    "1h": ("1 hour", timedelta(hours=1)),
    "8h": ("8 hours", timedelta(hours=8)),
    "1d": ("1 day", timedelta(days=1)),
    "7d": ("1 week", timedelta(days=7)),
}
ANY = "all"
OPEN_ONLY = "open"


class ActionForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own class takes no argument when it runs
    """The actions of a rule that fires; of a built-in rule also its two numbers."""

    class Meta:
        model = Rule
        fields = ("threshold", "for_steps", "is_sent", "pauses_run")
        labels = {  # noqa: RUF012  # Django's way to write a form's Meta
            "is_sent": "Send to the team's channels",
            "pauses_run": "Pause the run",
        }
        widgets: ClassVar[dict[str, forms.Widget]] = {
            "threshold": number_input(step="any"),
            "for_steps": number_input(min=1, max=MAX_STEPS),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        default = self.instance.default
        if default is None:
            return
        condition = default.condition
        if condition.kind in WITHOUT_THRESHOLD:
            del self.fields["threshold"]
        else:
            self.fields["threshold"].label = f"Threshold, {default.unit}"
            self.fields["threshold"].help_text = f"Empty: {condition.threshold:g}."
        if condition.kind is Kind.WARNED:
            del self.fields["for_steps"]
        else:
            unit = "evaluations" if condition.kind is Kind.OVERFITS else "steps"
            self.fields["for_steps"].label = f"Consecutive {unit}"
            self.fields["for_steps"].help_text = f"Empty: {condition.for_steps}."

    def clean_threshold(self) -> float | None:
        value: float | None = self.cleaned_data["threshold"]
        if value is not None and not math.isfinite(value):
            raise forms.ValidationError(
                f"Enter a finite number; got {value}.", code="not_finite"
            )
        return value

    def clean_for_steps(self) -> int | None:
        return check_steps(self.cleaned_data["for_steps"])


def check_steps(count: int | None) -> int | None:
    if count is not None and not 1 <= count <= MAX_STEPS:
        raise forms.ValidationError(
            f"Enter 1 to {MAX_STEPS} steps; got {count}.", code="out_of_range"
        )
    return count


class RuleForm(ActionForm):
    """An own rule. Without a name it is called by what it asks."""

    class Meta(ActionForm.Meta):
        fields = (  # type: ignore[assignment]  # more of them than its parent has
            *("metric", "kind", "threshold", "back", "for_steps"),
            *("run", "name_pattern", "name", "is_sent", "pauses_run"),
        )
        labels = {  # noqa: RUF012  # as above
            **ActionForm.Meta.labels,
            "metric": "Metric",
            "kind": "Condition",
            "threshold": "Value",
            "back": "Steps back",
            "for_steps": "Consecutive steps",
            "name_pattern": "Run name pattern",
            "name": "Name",
        }
        help_texts = {  # noqa: RUF012  # as above
            "back": "1 compares with the previous step.",
            "name_pattern": "* matches any text, as in sft-*. Empty: every run.",
            "name": "Empty: the condition becomes the name.",
        }
        widgets: ClassVar[dict[str, forms.Widget]] = {
            **ActionForm.Meta.widgets,
            "metric": text_input(list="metric-names", placeholder="kl/mean"),
            "back": number_input(min=1, max=MAX_STEPS),
            "name_pattern": text_input(placeholder="sft-*"),
            "name": text_input(),
        }

    kind = select_field(
        "Condition", choices=[(kind.value, KIND_LABELS[kind]) for kind in OWN_KINDS]
    )
    run = row_field("Run", "Every run", required=False)

    def __init__(self, *args: Any, team: Team, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance.team = team
        for name in ("metric", "for_steps"):
            self.fields[name].required = True
        for name in ("back", "name"):
            self.fields[name].required = False
        runs = Run.objects.filter(team=team).order_by("-id")
        offered = list(
            runs.filter(trashed_at=None).values_list("pk", flat=True)[:NUM_RUNS]
        )
        if self.instance.run_id is not None:
            offered.append(self.instance.run_id)
        set_choices(self, "run", runs.filter(pk__in=offered))

    def clean_back(self) -> int:
        back = check_steps(self.cleaned_data["back"])
        return 1 if back is None else back

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        needs_value = data.get("kind") in WITH_THRESHOLD
        if needs_value and data.get("threshold") is None and "threshold" in data:
            self.add_error(
                "threshold", forms.ValidationError("Enter a value.", code="required")
            )
        if data.get("kind") == Kind.CHANGES and (data.get("threshold") or 1) <= 0:
            self.add_error(
                "threshold",
                forms.ValidationError(
                    f"A change must be above 0%; got {data['threshold']:g}.",
                    code="not_positive",
                ),
            )
        if not needs_value:
            data["threshold"] = None
        if data.get("run") and data.get("name_pattern"):
            self.add_error(
                "name_pattern",
                forms.ValidationError(
                    "Choose a run or a name pattern, not both.", code="run_and_pattern"
                ),
            )
        return data

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's own hook, not in its stubs
        if not self.errors and not self.instance.name:
            self.instance.name = describe(self.instance)[:80]


class MuteForm(forms.Form):
    """For how long; empty: no longer."""

    mute = forms.ChoiceField(
        required=False,
        choices=[
            ("", "Not muted"),
            *((key, label) for key, (label, _) in MUTES.items()),
        ],
    )

    @property
    def until(self) -> Any:
        chosen = self.cleaned_data["mute"]
        return timezone.now() + MUTES[chosen][1] if chosen else None


class FilterForm(forms.Form):
    """Every field is a parameter of the address; one that means nothing is left out."""

    state = select_field(
        "State",
        required=False,
        choices=[
            (OPEN_ONLY, "Open, active runs"),
            (ANY, "Any state"),
            *AlertState.choices,
        ],
    )
    rule = row_field("Rule", "Any rule", required=False)
    run = forms.CharField(
        label="Run",
        required=False,
        max_length=80,
        widget=text_input(placeholder="name, #id"),
    )

    def __init__(self, query: QueryDict, *, team: Team, state: str) -> None:
        super().__init__(query or {"state": state})
        self.default_state = state
        set_choices(self, "rule", Rule.objects.filter(team=team).order_by("name"))

    def narrow(self, alerts: Any) -> Any:
        self.is_valid()
        data = self.cleaned_data
        state = data.get("state") or self.default_state
        if state == OPEN_ONLY:
            alerts = alerts.actionable()
        elif state != ANY:
            alerts = alerts.filter(state=state)
        if data.get("rule"):
            alerts = alerts.filter(rule=data["rule"])
        if text := data.get("run"):
            number = read_whole(text.removeprefix("#"))
            if number is not None:
                return alerts.filter(run_id=number)
            alerts = alerts.filter(run__name__icontains=text)
        return alerts


class EventsForm(forms.Form):
    """The events that a channel receives."""

    events = forms.MultipleChoiceField(
        label="Events",
        choices=Event.choices,
        widget=forms.CheckboxSelectMultiple,
        error_messages={
            "required": "Choose at least one event, or switch the channel off."
        },
    )


class ChannelForm(EventsForm):
    kind = forms.ChoiceField(choices=Channel.Kind.choices)
    address = forms.CharField(max_length=500, strip=True)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        kind, address = data.get("kind"), data.get("address")
        if kind == Channel.Kind.EMAIL and address:
            email = forms.EmailField(max_length=254)
            try:
                data["address"] = mail_address(email.clean(address))
            except (forms.ValidationError, ValueError):
                self.add_error(
                    "address",
                    f"{address[:80]!r} is not an e-mail address. Write it as "
                    "name@example.org.",
                )
        if kind == Channel.Kind.WEBHOOK and address:
            try:
                read_address(address)
            except ValueError as error:
                self.add_error("address", str(error))
        return data


def mail_address(address: str) -> str:
    """ValueError, where no mail can be sent to it: a domain may have no ASCII form."""
    sanitize_address(address, "utf-8")
    if not address.isprintable():
        raise ValueError("Control characters.")
    return address
