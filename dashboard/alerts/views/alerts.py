from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.alerts.forms import ANY, OPEN_ONES, FilterForm, MuteForm
from dashboard.alerts.models import AlertQuerySet
from dashboard.alerts.queries import (
    describe_for_page,
    get_alert,
    list_alerts,
    muted_until,
)
from dashboard.alerts.services import acknowledge, mute_run
from dashboard.runs.queries import get_run

PER_PAGE = 50


@require_safe
def alerts(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    found = list_alerts(team_)
    context = _list(request, team_, found, state=OPEN_ONES)
    return render(request, "alerts/list.html", context | {"part": "alerts"})


def _list(
    request: HttpRequest, team: Team, found: AlertQuerySet, *, state: str
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
def run_alerts(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    found = list_alerts(team_).filter(run=run)
    context = _list(request, team_, found, state=ANY)
    mute = {"muted_until": muted_until(run), "mute_form": MuteForm()}
    context |= {"run": run, "tab": "alerts", **mute}
    return render(request, "alerts/run.html", context)


@require_GET
def run_alerts_live(request: HttpRequest, team: str, run_id: int) -> JsonResponse:
    """What the run's page shows; it asks again when `alerts_seq` of a frame rises."""
    run = get_run(get_team(request, team), run_id)
    return JsonResponse({"seq": run.alerts_seq, "alerts": describe_for_page(run)})


@require_POST
def run_alerts_mute(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    form = MuteForm(request.POST)
    if form.is_valid():
        assert isinstance(request.user, User)
        mute_run(run=run, user=request.user, until=form.until)
    return redirect("run_alerts", team_.slug, run.id)


@require_safe
def alert(request: HttpRequest, team: str, alert_id: int) -> HttpResponse:
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
def alert_acknowledge(request: HttpRequest, team: str, alert_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    alert_ = get_alert(team_, alert_id)
    assert isinstance(request.user, User)
    if not acknowledge(alert=alert_, user=request.user):
        alert_.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to acknowledge: the alert is {alert_.state}.")
    return redirect("alert", team_.slug, alert_.pk)
