from __future__ import annotations

from typing import Any

from django import forms
from django.core.mail.message import sanitize_address

from dashboard.alerts.models import Channel, Event
from dashboard.alerts.webhook import read_address


class EventsForm(forms.Form):
    """Of what a channel is told."""

    events = forms.MultipleChoiceField(
        label="Tell it when",
        choices=Event.choices,
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one, or switch the channel off."},
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
                said = f"{address[:80]!r} is no e-mail address. Write name@example.org."
                self.add_error("address", said)
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
