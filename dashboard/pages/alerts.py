"""Alert rules, and the alerts of a team and of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.forms import ChoiceField, ValidationError
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import (
    require_GET,
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.alerts.forms import (
    ANY,
    OPEN_ONLY,
    ActionForm,
    FilterForm,
    MuteForm,
    RuleForm,
)
from dashboard.alerts.models import AlertQuerySet, Rule
from dashboard.alerts.queries import (
    describe,
    describe_for_page,
    get_alert,
    get_rule,
    list_alerts,
    list_metrics,
    list_rules,
    muted_until,
)
from dashboard.alerts.services import (
    acknowledge,
    change_rule,
    create_rule,
    delete_rule,
    mute_rule,
    mute_run,
    switch_rule,
)
from dashboard.pages.requests import Request
from dashboard.project.edits import EditConflict, began_with, merge_form, show_conflict
from dashboard.project.errors import code_of
from dashboard.runs.queries import get_run

PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
def alert_rules(request: Request, team: str) -> HttpResponse:
    """All rules, and a line to add one."""
    is_post = request.method == "POST"
    team_ = (get_writable_team if is_post else get_team)(request, team)
    start = {"for_steps": 1, "is_sent": True, "kind": "above"}
    given = {
        name: request.GET[name] for name in ("metric", "run") if name in request.GET
    }
    form = RuleForm(
        request.POST if is_post else None, team=team_, initial=start | given
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
        "part": "rules",
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
        form = _form(rule)
        began = began_with(form, data)
        try:
            form = _form(rule, merge_form(form, data)) if data is not None else form
        except EditConflict as conflict:
            return _show_both(request, form, conflict)
        if data is not None and form.is_valid():
            is_changed = change_rule(rule=form.instance, user=request.user)
            name = form.instance.name
            message = f"Saved “{name}”." if is_changed else f"“{name}” is unchanged."
            messages.success(request, message)
            return redirect("alert_rules", team_.slug)
    as_it_is = Rule.objects.get(pk=rule.pk)  # `rule` has the values of the form
    context = {
        "team": team_,
        "part": "rules",
        "rule": as_it_is,
        "reads": describe(as_it_is),
        "form": form,
        "began": began,
        "metrics": list_metrics(team_),
        "mute_form": MuteForm(),
    }
    return render(request, "alerts/rule.html", context, status=400 if data else 200)


def _form(rule: Rule, data: Mapping[str, str] | None = None) -> ActionForm:
    if rule.built_in:
        return ActionForm(data, instance=rule)
    return RuleForm(data, instance=rule, team=rule.team)


def _show_both(
    request: Request, form: ActionForm, conflict: EditConflict
) -> HttpResponse:
    fields = form.fields.items()
    chosen = {n: f for n, f in fields if isinstance(f, ChoiceField)}
    return show_conflict(
        request,
        conflict,
        what=form.instance.name,
        back=request.path,
        labels={name: str(field.label) for name, field in fields},
        choices={n: _labels(f) for n, f in chosen.items()},
        team=form.instance.team,
    )


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
    context = _list(request, team_, found, state=OPEN_ONLY)
    return render(request, "alerts/list.html", context | {"part": "alerts"})


def _list(
    request: Request, team: Team, found: AlertQuerySet, *, state: str
) -> dict[str, Any]:
    form = FilterForm(request.GET or None, team=team, state=state)
    if not form.is_bound:
        form = FilterForm({"state": state}, team=team, state=state)
    paginator = Paginator(form.narrow(found), PER_PAGE)
    return {
        "team": team,
        "form": form,
        "page": paginator.get_page(request.GET.get("page")),
        "num_alerts": found.count(),
        "is_narrowed": bool({"state", "rule", "run"} & set(request.GET)),
    }


@require_safe
def run_alerts(request: Request, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    found = list_alerts(team_).filter(run=run)
    context = _list(request, team_, found, state=ANY)
    mute = {"muted_until": muted_until(run), "mute_form": MuteForm()}
    context |= {"run": run, "tab": "alerts", **mute}
    return render(request, "alerts/run.html", context)


@require_GET
def run_alerts_live(request: Request, team: str, run_id: int) -> JsonResponse:
    """What the run's page shows; it asks again when `alerts_seq` of a frame rises."""
    run = get_run(get_team(request, team), run_id)
    return JsonResponse({"seq": run.alerts_seq, "alerts": describe_for_page(run)})


@require_POST
def run_alerts_mute(request: Request, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    form = MuteForm(request.POST)
    if form.is_valid():
        mute_run(run=run, user=request.user, until=form.until)
    return redirect("run_alerts", team_.slug, run.id)


@require_safe
def alert(request: Request, team: str, alert_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    alert_ = get_alert(team_, alert_id)
    context = {
        "team": team_,
        "alert": alert_,
        "run": alert_.run,
        "part": "alerts",
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
    return redirect("alert", team_.slug, alert_.pk)
