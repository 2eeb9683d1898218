"""The alerts of a team, their rules, and the channels that receive them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.forms import ChoiceField, ValidationError
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.alerts.delivery import MAX_ATTEMPTS
from dashboard.alerts.forms import (
    OPEN_ONLY,
    ActionForm,
    ChannelForm,
    EventsForm,
    FilterForm,
    MuteForm,
    RuleForm,
)
from dashboard.alerts.messages import signing_secret
from dashboard.alerts.models import Channel, DeliveryState, Event, Rule
from dashboard.alerts.queries import (
    describe,
    get_alert,
    get_channel,
    get_delivery,
    get_rule,
    list_alerts,
    list_deliveries,
    list_metrics,
    list_rules,
)
from dashboard.alerts.services import (
    acknowledge,
    add_channel,
    change_rule,
    change_secret,
    choose_events,
    create_rule,
    delete_channel,
    delete_rule,
    mute_rule,
    resend,
    send_test,
    shown_address,
    switch_channel,
    switch_rule,
)
from dashboard.pages.requests import Request
from dashboard.project.errors import code_of
from dashboard.web.edits import (
    BASE,
    EditConflict,
    merge_saved,
    show_conflict,
    version_of_form,
)

PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
def alert_rules(request: Request, team: str) -> HttpResponse:
    """List all rules, and a form to add one."""
    is_post = request.method == "POST"
    team_ = (get_writable_team if is_post else get_team)(request, team)
    start = {"for_steps": 1, "is_sent": True, "kind": "above"}
    requested = {
        name: request.GET[name] for name in ("metric", "run") if name in request.GET
    }
    form = RuleForm(
        request.POST if is_post else None, team=team_, initial=start | requested
    )
    if is_post and form.is_valid():
        try:
            rule = create_rule(rule=form.instance, user=request.user)
        except ValueError as error:
            form.add_error(None, ValidationError(str(error), code=code_of(error)))
        else:
            message = f"Added “{rule.name}”. It applies from the next step."
            messages.success(request, message)
            return redirect("alert_rules", team_.slug)
    rules = [(rule, describe(rule)) for rule in list_rules(team_.pk)]
    context = {
        "team": team_,
        "form": form,
        "metrics": list_metrics(team_),
        "own": [pair for pair in rules if not pair[0].built_in],
        "built_in": [pair for pair in rules if pair[0].built_in],
    }
    return render(request, "alerts/rules.html", context, status=400 if is_post else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def alert_rule(request: Request, team: str, rule_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    data = request.POST if request.method == "POST" else None
    with transaction.atomic():
        rule = get_rule(team_, rule_id, is_held=data is not None)
        form = (
            ActionForm(data, instance=rule)
            if rule.built_in
            else RuleForm(data, instance=rule, team=rule.team)
        )
        base = data.get(BASE, "") if data is not None else version_of_form(form)
        try:
            if data is not None:
                base = merge_saved(form, base)
        except EditConflict as conflict:
            fields = form.fields.items()
            chosen = {n: f for n, f in fields if isinstance(f, ChoiceField)}
            return show_conflict(
                request,
                conflict,
                what=form.instance.name,
                back=request.path,
                labels={name: str(field.label) for name, field in fields},
                choices={n: _labels(f) for n, f in chosen.items()},
                team=team_,
                saved=last_entry(team_, form.instance, "alert_rule.changed"),
            )
        if data is not None and form.is_valid():
            is_changed = change_rule(rule=form.instance, user=request.user)
            name = form.instance.name
            message = f"Saved “{name}”." if is_changed else f"“{name}” is unchanged."
            messages.success(request, message)
            return redirect("alert_rules", team_.slug)
    as_it_is = Rule.objects.get(pk=rule.pk)  # `rule` has the values of the form
    context = {
        "team": team_,
        "rule": as_it_is,
        "reads": describe(as_it_is),
        "form": form,
        "base_version": base,
        "metrics": list_metrics(team_),
        "mute_form": MuteForm(),
    }
    return render(request, "alerts/rule.html", context, status=400 if data else 200)


def _labels(field: ChoiceField) -> dict[str, str]:
    pairs = cast(Iterable[tuple[Any, Any]], field.choices)
    return {str(value): str(label) for value, label in pairs}


@require_POST
def alert_rule_switch(request: Request, team: str, rule_id: int) -> HttpResponse:
    rule = _writable_rule(request, team, rule_id)
    switch_rule(rule=rule, user=request.user, is_enabled="on" in request.POST)
    return redirect("alert_rules", team)


@require_POST
def alert_rule_mute(request: Request, team: str, rule_id: int) -> HttpResponse:
    rule = _writable_rule(request, team, rule_id)
    form = MuteForm(request.POST)
    if form.is_valid():
        mute_rule(rule=rule, user=request.user, until=form.until)
    return redirect("alert_rules", team)


@require_POST
def alert_rule_delete(request: Request, team: str, rule_id: int) -> HttpResponse:
    rule = _writable_rule(request, team, rule_id)
    if rule.built_in:
        messages.info(
            request, "You cannot delete a built-in rule. Switch it off instead."
        )
    else:
        delete_rule(rule=rule, user=request.user)
        messages.success(request, f"Deleted “{rule.name}”. Its alerts remain.")
    return redirect("alert_rules", team)


def _writable_rule(request: Request, team: str, rule_id: int) -> Rule:
    return get_rule(get_writable_team(request, team), rule_id)


@require_safe
def alerts(request: Request, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    found = list_alerts(team_)
    form = FilterForm(request.GET or None, team=team_, state=OPEN_ONLY)
    if not form.is_bound:
        form = FilterForm({"state": OPEN_ONLY}, team=team_, state=OPEN_ONLY)
    paginator = Paginator(form.narrow(found), PER_PAGE)
    context = {
        "team": team_,
        "form": form,
        "page": paginator.get_page(request.GET.get("page")),
        "num_alerts": found.count(),
        "is_narrowed": bool({"state", "rule", "run"} & set(request.GET)),
    }
    return render(request, "alerts/list.html", context)


@require_safe
def alert(request: Request, team: str, alert_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    alert_ = get_alert(team_, alert_id)
    context = {
        "team": team_,
        "alert": alert_,
        "run": alert_.run,
        "mute_form": MuteForm(),
        "deliveries": alert_.deliveries.select_related("channel"),
    }
    return render(request, "alerts/alert.html", context)


@require_POST
def alert_acknowledge(request: Request, team: str, alert_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    alert_ = get_alert(team_, alert_id)
    if not acknowledge(alert=alert_, user=request.user):
        alert_.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to acknowledge: the alert is {alert_.state}.")
    if "from_run" in request.POST:
        return redirect("run_health", team_.slug, alert_.run_id)
    return redirect("alert", team_.slug, alert_.pk)


# Delivery: the team's channels, and the log of what they received.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def alert_delivery(request: Request, team: str) -> HttpResponse:
    if request.method != "POST":
        return _show_delivery(request, get_team(request, team), ChannelForm())
    team_ = get_writable_team(request, team)
    form = ChannelForm(request.POST)
    if not form.is_valid():
        return _show_delivery(request, team_, form, status=400)
    try:
        channel = add_channel(team=team_, user=request.user, **form.cleaned_data)
    except ValueError as error:
        form.add_error(None, ValidationError(str(error), code=code_of(error)))
        return _show_delivery(request, team_, form, status=400)
    if channel.kind == Channel.Kind.WEBHOOK:
        return _show_delivery(request, team_, ChannelForm(), revealed=channel)
    messages.success(
        request, f"Added the channel {channel.address}. Send a test to check it."
    )
    return redirect("alert_delivery", team_.slug)


def _show_delivery(
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
        "form": form,
        "channels": [(channel, shown_address(channel)) for channel in channels],
        "logged": [(delivery, shown_address(delivery.channel)) for delivery in page],
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
    """Create a new secret, which is shown this once."""
    channel = _writable_channel(request, team, channel_id)
    if channel.kind != Channel.Kind.WEBHOOK:
        return redirect("alert_delivery", team)
    change_secret(channel=channel, user=request.user)
    return _show_delivery(request, channel.team, ChannelForm(), revealed=channel)


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
    if not form.is_valid():
        messages.error(request, str(form.errors["events"][0]))
        return redirect("alert_delivery", team)
    events = form.cleaned_data["events"]
    try:
        base = request.POST.get(BASE, "")
        choose_events(channel=channel, user=request.user, events=events, base=base)
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=shown_address(channel),
            back=reverse("alert_delivery", args=[team]),
            choices={"events": {str(e.value): str(e.label) for e in Event}},
            team=channel.team,
            saved=last_entry(channel.team, channel, "alert_channel.events_chosen"),
        )
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
