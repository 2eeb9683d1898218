"""Costs of a run and of a team, and the team's prices."""

from __future__ import annotations

import csv
import io
from typing import Any, ClassVar, get_args

from django import forms
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import record
from dashboard.costs.ledger import Bill
from dashboard.costs.models import Price, Unit
from dashboard.costs.reports import By, find_unpriced, read_run_cost, read_team_costs
from dashboard.pages.requests import Request, redirect_with
from dashboard.pages.team_admin import get_changing_membership
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.supervision.system_samples import read_idle_shares
from dashboard.web.downloads import attach, mark_for_spreadsheets
from trainer.rewards.model_judge.client import USAGE

WAYS: tuple[By, ...] = get_args(By)


@require_GET
@look_up(get_membership, run=get_run)
def run_cost(request: Request, team: Team, run: Run) -> HttpResponse:
    cost = read_run_cost(run)
    idle = read_idle_shares(run)
    of_attempts = {
        line.label: idle.get(int(line.label), 0.0) * line.bill.gpu_hours
        for line in cost.lines
        if line.kind == "attempt"
    }
    rollout = run.config.get("rollout") or {}
    uses_server = rollout.get("engine") == "vllm_server"
    context = {
        "team": team,
        "run": run,
        "tab": "cost",
        "lacks_server": uses_server
        and bool(cost.lines)
        and not any(line.label == "rollout" for line in cost.lines),
        "cost": cost,
        "rows": [(line, of_attempts.get(line.label)) for line in cost.lines],
        "idle_hours": sum(of_attempts.values()),
        "budget": (run.config.get("logging") or {}).get("budget_cost"),
    }
    return render(request, "costs/run.html", context)


def _read_way(request: Request) -> By:
    return next((way for way in WAYS if way == request.GET.get("by")), "month")


@require_safe
@look_up(get_membership)
def team_costs(request: Request, team: Team) -> HttpResponse:
    """?by=: month, person or model."""
    by = _read_way(request)
    context = {
        "team": team,
        "by": by,
        "ways": WAYS,
        "rows": read_team_costs(team, by),
        "has_prices": team.prices.exists(),
    }
    return render(request, "costs/team.html", context)


@require_safe
@look_up(get_membership)
def team_costs_file(request: Request, team: Team) -> HttpResponseBase:
    by = _read_way(request)
    rows = read_team_costs(team, by)
    currencies = sorted({name for row in rows for name in row.bill.costs})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    costs = (f"cost_{name}" if name else "cost" for name in currencies)
    writer.writerow([by, "runs", "gpu_hours", "worker_hours", *USAGE, *costs])
    for row in rows:
        writer.writerow([row.key, row.num_runs, *_cells(row.bill, currencies)])
    file = attach(
        [text.getvalue().encode()],
        filename=f"costs-{team.slug}-by-{by}.csv",
        content_type="text/csv; charset=utf-8",
    )
    return mark_for_spreadsheets(file)


def _cells(bill: Bill, currencies: list[str]) -> list[Any]:
    """Write numbers; an empty cell is unknown, or costs nothing in this currency."""
    tokens = [bill.amounts.get(name, "") for name in USAGE]
    costs = [bill.costs.get(name, "") for name in currencies]
    return [bill.gpu_hours, bill.worker_hours, *tokens, *costs]


class PriceForm(forms.ModelForm[Price]):
    class Meta:
        model = Price
        fields = ("unit", "name", "amount", "currency", "valid_from")
        help_texts: ClassVar[dict[str, str]] = {
            "name": "As a worker or server reports its GPU, or cpu; or the model of a "
            "judge.",
            "amount": "Empty: not set from this day on.",
            "currency": "A code such as EUR.",
            "valid_from": "From midnight UTC. A later row of the same day replaces it.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields["amount"].widget.attrs |= {"min": 0, "step": "any"}
        self.fields["unit"].widget.attrs["class"] = "form-select"
        self.fields["valid_from"].widget = forms.DateInput(
            attrs={"type": "date", "class": "form-control"}
        )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_changing_membership)
def team_prices(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """Add a price; ?unit=&name= fill in the form. Prices are never changed."""
    start = {
        "unit": request.GET.get("unit", Unit.GPU_HOUR),
        "name": request.GET.get("name", "")[:200],
    }
    newest = team.prices.exclude(currency="").order_by("-pk").first()
    form = PriceForm(
        request.POST or None,
        initial=start
        | {
            "valid_from": timezone.now().date(),
            "currency": newest.currency if newest else "",
        },
    )
    if request.method == "POST" and form.is_valid():
        form.instance.team, form.instance.created_by = team, request.user
        price = form.save()
        record(
            team,
            request.user,
            "price.added",
            team,
            name=str(price),
            amount=price.amount,
            currency=price.currency,
            valid_from=price.valid_from.isoformat(),
        )
        return redirect_with(request, f"Added {price}.", "team_prices", team.slug)
    context = {
        "team": team,
        "can_manage": membership.can_manage,
        "prices": team.prices.select_related("created_by").order_by(
            "name", "unit", "-valid_from", "-pk"
        ),
        "unpriced": find_unpriced(team),
        "form": form,
    }
    status = 422 if form.errors else 200
    return render(request, "costs/prices.html", context, status=status)
