"""The alerts of a team, their rules, and the channels that receive them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

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

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    get_writing_membership,
    look_up,
)
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
from dashboard.alerts.models import Alert, Channel, Delivery, DeliveryState, Event, Rule
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
from dashboard.pages.requests import Request, redirect_with, report_refusal
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
@look_up(get_membership_for)
def alert_rules(request: Request, team: Team) -> HttpResponse:
    """List all rules, and a form to add one."""
    is_post = request.method == "POST"
    start = {"for_steps": 1, "is_sent": True, "kind": "above"}
    requested = {
        name: request.GET[name] for name in ("metric", "run") if name in request.GET
    }
    form = RuleForm(
        request.POST if is_post else None, team=team, initial=start | requested
    )
    if is_post and form.is_valid():
        try:
            rule = create_rule(rule=form.instance, user=request.user)
        except ValueError as error:
            form.add_error(None, ValidationError(str(error), code=code_of(error)))
        else:
            message = f"Added “{rule.name}”. It applies from the next step."
            return redirect_with(request, message, "alert_rules", team.slug)
    rules = [(rule, describe(rule)) for rule in list_rules(team.pk)]
    context = {
        "team": team,
        "form": form,
        "metrics": list_metrics(team),
        "own": [pair for pair in rules if not pair[0].built_in],
        "built_in": [pair for pair in rules if pair[0].built_in],
    }
    return render(request, "alerts/rules.html", context, status=400 if is_post else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership)
def alert_rule(request: Request, team: Team, rule_id: int) -> HttpResponse:
    data = request.POST if request.method == "POST" else None
    with transaction.atomic():
        rule = get_rule(team, rule_id, is_held=data is not None)
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
                team=team,
                saved=last_entry(team, form.instance, "alert_rule.changed"),
            )
        if data is not None and form.is_valid():
            is_changed = change_rule(rule=form.instance, user=request.user)
            name = form.instance.name
            message = f"Saved “{name}”." if is_changed else f"“{name}” is unchanged."
            return redirect_with(request, message, "alert_rules", team.slug)
    as_it_is = Rule.objects.get(pk=rule.pk)  # `rule` has the values of the form
    context = {
        "team": team,
        "rule": as_it_is,
        "reads": describe(as_it_is),
        "form": form,
        "base_version": base,
        "metrics": list_metrics(team),
        "mute_form": MuteForm(),
    }
    return render(request, "alerts/rule.html", context, status=400 if data else 200)


def _labels(field: ChoiceField) -> dict[str, str]:
    pairs = cast(Iterable[tuple[Any, Any]], field.choices)
    return {str(value): str(label) for value, label in pairs}


@require_POST
@look_up(get_writing_membership, rule=get_rule)
def alert_rule_switch(request: Request, team: Team, rule: Rule) -> HttpResponse:
    switch_rule(rule=rule, user=request.user, is_enabled="on" in request.POST)
    return redirect("alert_rules", team.slug)


@require_POST
@look_up(get_writing_membership, rule=get_rule)
def alert_rule_mute(request: Request, team: Team, rule: Rule) -> HttpResponse:
    form = MuteForm(request.POST)
    if form.is_valid():
        mute_rule(rule=rule, user=request.user, until=form.until)
    return redirect("alert_rules", team.slug)


@require_POST
@look_up(get_writing_membership, rule=get_rule)
def alert_rule_delete(request: Request, team: Team, rule: Rule) -> HttpResponse:
    with report_refusal(request):
        delete_rule(rule=rule, user=request.user)
        messages.success(request, f"Deleted “{rule.name}”. Its alerts remain.")
    return redirect("alert_rules", team.slug)


@require_safe
@look_up(get_membership)
def alerts(request: Request, team: Team) -> HttpResponse:
    alerts_found = list_alerts(team)
    form = FilterForm(request.GET, team=team, state=OPEN_ONLY)
    paginator = Paginator(form.narrow(alerts_found), PER_PAGE)
    context = {
        "team": team,
        "form": form,
        "page": paginator.get_page(request.GET.get("page")),
        "num_alerts": alerts_found.count(),
        "is_narrowed": bool({"state", "rule", "run"} & set(request.GET)),
    }
    return render(request, "alerts/list.html", context)


@require_safe
@look_up(get_membership, alert=get_alert)
def alert(request: Request, team: Team, alert: Alert) -> HttpResponse:
    context = {
        "team": team,
        "alert": alert,
        "run": alert.run,
        "mute_form": MuteForm(),
        "deliveries": alert.deliveries.select_related("channel"),
    }
    return render(request, "alerts/alert.html", context)


@require_POST
@look_up(get_writing_membership, alert=get_alert)
def alert_acknowledge(request: Request, team: Team, alert: Alert) -> HttpResponse:
    if not acknowledge(alert=alert, user=request.user):
        alert.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to acknowledge: the alert is {alert.state}.")
    if "from_run" in request.POST:
        return redirect("run_health", team.slug, alert.run_id)
    return redirect("alert", team.slug, alert.pk)


# Delivery: the team's channels, and the log of what they received.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for)
def alert_delivery(request: Request, team: Team) -> HttpResponse:
    if request.method != "POST":
        return _show_delivery(request, team, ChannelForm())
    form = ChannelForm(request.POST)
    if not form.is_valid():
        return _show_delivery(request, team, form, status=400)
    try:
        channel = add_channel(team=team, user=request.user, **form.cleaned_data)
    except ValueError as error:
        form.add_error(None, ValidationError(str(error), code=code_of(error)))
        return _show_delivery(request, team, form, status=400)
    if channel.kind == Channel.Kind.WEBHOOK:
        return _show_delivery(request, team, ChannelForm(), revealed=channel)
    return redirect_with(
        request,
        f"Added the channel {channel.address}. Send a test to check it.",
        "alert_delivery",
        team.slug,
    )


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
@look_up(get_writing_membership, channel=get_channel)
def alert_channel_secret(
    request: Request, team: Team, channel: Channel
) -> HttpResponse:
    """Create a new secret, which is shown this once."""
    if channel.kind != Channel.Kind.WEBHOOK:
        return redirect("alert_delivery", team.slug)
    change_secret(channel=channel, user=request.user)
    return _show_delivery(request, team, ChannelForm(), revealed=channel)


@require_POST
@look_up(get_writing_membership, channel=get_channel)
def alert_channel_test(request: Request, team: Team, channel: Channel) -> HttpResponse:
    with report_refusal(request):
        send_test(channel=channel, user=request.user)
        messages.info(request, "Sending a test. The log below shows the result.")
    return redirect("alert_delivery", team.slug)


@require_POST
@look_up(get_writing_membership, delivery=get_delivery)
def alert_delivery_again(
    request: Request, team: Team, delivery: Delivery
) -> HttpResponse:
    with report_refusal(request):
        is_waiting = resend(delivery=delivery, user=request.user)
        message = (
            "Sending again." if is_waiting else "Cohort is still trying to send it."
        )
        messages.info(request, f"{message} The log below shows the result.")
    return redirect("alert_delivery", team.slug)


@require_POST
@look_up(get_writing_membership, channel=get_channel)
def alert_channel_events(
    request: Request, team: Team, channel: Channel
) -> HttpResponse:
    form = EventsForm(request.POST)
    if not form.is_valid():
        messages.error(request, str(form.errors["events"][0]))
        return redirect("alert_delivery", team.slug)
    events = form.cleaned_data["events"]
    try:
        base = request.POST.get(BASE, "")
        choose_events(channel=channel, user=request.user, events=events, base=base)
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=shown_address(channel),
            back=reverse("alert_delivery", args=[team.slug]),
            choices={"events": {str(e.value): str(e.label) for e in Event}},
            team=team,
            saved=last_entry(team, channel, "alert_channel.events_chosen"),
        )
    return redirect_with(
        request, "Saved the events of the channel.", "alert_delivery", team.slug
    )


@require_POST
@look_up(get_writing_membership, channel=get_channel)
def alert_channel_switch(
    request: Request, team: Team, channel: Channel
) -> HttpResponse:
    switch_channel(channel=channel, user=request.user, is_enabled="on" in request.POST)
    return redirect("alert_delivery", team.slug)


@require_POST
@look_up(get_writing_membership, channel=get_channel)
def alert_channel_delete(
    request: Request, team: Team, channel: Channel
) -> HttpResponse:
    delete_channel(channel=channel, user=request.user)
    return redirect_with(request, "Deleted the channel.", "alert_delivery", team.slug)
