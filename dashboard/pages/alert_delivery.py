"""A team's alert channels, and the log of what was delivered to them."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.forms import ValidationError
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.alerts.delivery import MAX_ATTEMPTS
from dashboard.alerts.forms import ChannelForm, EventsForm
from dashboard.alerts.messages import signing_secret
from dashboard.alerts.models import Channel, DeliveryState, Event
from dashboard.alerts.queries import get_channel, get_delivery, list_deliveries
from dashboard.alerts.services import (
    add_channel,
    change_secret,
    choose_events,
    delete_channel,
    resend,
    send_test,
    shown_address,
    switch_channel,
)
from dashboard.pages.requests import Request
from dashboard.project.edits import Edit
from dashboard.project.errors import code_of

PER_PAGE = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def alert_delivery(request: Request, team: str) -> HttpResponse:
    if request.method != "POST":
        return _page(request, get_team(request, team), ChannelForm())
    team_ = get_writable_team(request, team)
    form = ChannelForm(request.POST)
    if not form.is_valid():
        return _page(request, team_, form, status=400)
    try:
        channel = add_channel(team=team_, user=request.user, **form.cleaned_data)
    except ValueError as error:
        form.add_error(None, ValidationError(str(error), code=code_of(error)))
        return _page(request, team_, form, status=400)
    if channel.kind == Channel.Kind.WEBHOOK:
        return _page(request, team_, ChannelForm(), revealed=channel)
    messages.success(
        request, f"Added the channel {channel.address}. Send a test to check it."
    )
    return redirect("alert_delivery", team_.slug)


def _page(
    request: Request,
    team: Team,
    form: ChannelForm,
    *,
    revealed: Channel | None = None,
    status: int = 200,
) -> HttpResponse:
    channels = Channel.objects.filter(team=team).order_by("pk")
    state = request.GET.get("state", "")
    logged = Paginator(list_deliveries(team, state), PER_PAGE)
    page = logged.get_page(request.GET.get("page"))
    context = {
        "team": team,
        "part": "delivery",
        "form": form,
        "channels": [(channel, shown_address(channel)) for channel in channels],
        "logged": [(one, shown_address(one.channel)) for one in page],
        "page": page,
        "state": state,
        "states": DeliveryState.values,
        "events": Event.choices,
        "chosen_events": form["events"].value() if form.is_bound else Event.values,
        "mail_is_set_up": settings.MAIL_IS_SET_UP,
        "revealed": revealed,
        "secret": signing_secret(revealed) if revealed else "",
        "max_attempts": MAX_ATTEMPTS,
    }
    return render(request, "alerts/delivery.html", context, status=status)


@never_cache
@require_POST
def alert_channel_secret(request: Request, team: str, channel_id: int) -> HttpResponse:
    """A new one, shown this once."""
    channel = _writable_channel(request, team, channel_id)
    if channel.kind != Channel.Kind.WEBHOOK:
        return redirect("alert_delivery", team)
    change_secret(channel=channel, user=request.user)
    return _page(request, channel.team, ChannelForm(), revealed=channel)


@require_POST
def alert_channel_test(request: Request, team: str, channel_id: int) -> HttpResponse:
    channel = _writable_channel(request, team, channel_id)
    try:
        send_test(channel=channel, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        message = "Sending a test. The log below shows the result."
        messages.info(request, message)
    return redirect("alert_delivery", team)


@require_POST
def alert_delivery_again(
    request: Request, team: str, delivery_id: UUID
) -> HttpResponse:
    delivery = get_delivery(get_writable_team(request, team), delivery_id)
    try:
        is_waiting = resend(delivery=delivery, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        message = (
            "Sending again." if is_waiting else "Cohort is still trying to send it."
        )
        messages.info(request, f"{message} The log below shows the result.")
    return redirect("alert_delivery", team)


@require_POST
def alert_channel_events(request: Request, team: str, channel_id: int) -> HttpResponse:
    channel = _writable_channel(request, team, channel_id)
    form = EventsForm(request.POST)
    was = Edit.read(request.POST, (), lists=["events"]).was.get("events")
    if not form.is_valid():
        messages.error(request, str(form.errors["events"][0]))
        return redirect("alert_delivery", team)
    events = form.cleaned_data["events"]
    try:
        choose_events(channel=channel, user=request.user, events=events, was=was)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, "Saved the events of the channel.")
    return redirect("alert_delivery", team)


@require_POST
def alert_channel_switch(request: Request, team: str, channel_id: int) -> HttpResponse:
    channel = _writable_channel(request, team, channel_id)
    is_enabled = "on" in request.POST
    switch_channel(channel=channel, user=request.user, is_enabled=is_enabled)
    return redirect("alert_delivery", team)


@require_POST
def alert_channel_delete(request: Request, team: str, channel_id: int) -> HttpResponse:
    channel = _writable_channel(request, team, channel_id)
    delete_channel(channel=channel, user=request.user)
    messages.success(request, "Deleted the channel.")
    return redirect("alert_delivery", team)


def _writable_channel(request: Request, team: str, channel_id: int) -> Channel:
    return get_channel(get_writable_team(request, team), channel_id)
