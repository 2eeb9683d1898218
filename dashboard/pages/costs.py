"""Costs of a run and of a team, and the team's prices."""

from __future__ import annotations

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
from dashboard.costs.ledger import CPU, UNKNOWN
from dashboard.costs.models import Price, Unit
from dashboard.costs.reports import By, list_items, read_run_cost, read_team_costs
from dashboard.datasets.row_exports import csv_lines, defused, joined
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
    servers = {line.label: line.item for line in cost.lines if line.kind == "server"}
    if (run.config.get("rollout") or {}).get("engine") == "vllm_server" and cost.lines:
        servers.setdefault("rollout", UNKNOWN)  # an older release left its time out
    context = {
        "team": team,
        "run": run,
        "tab": "cost",
        "unknown_servers": [name for name in servers if servers[name] == UNKNOWN],
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
    }
    return render(request, "costs/team.html", context)


@require_safe
@look_up(get_membership)
def team_costs_file(request: Request, team: Team) -> HttpResponseBase:
    by = _read_way(request)
    rows = read_team_costs(team, by)
    currencies = sorted({name for row in rows for name in row.bill.costs})
    costs = (f"cost_{name}" if name else "cost" for name in currencies)
    names = [by, "runs", "gpu_hours", "worker_hours", *USAGE, *costs]
    table: list[list[Any]] = []
    for row in rows:
        bill = row.bill
        # An empty cell is unknown, or costs nothing in this currency.
        numbers = [bill.amounts.get(name, "") for name in USAGE]
        numbers += [bill.costs.get(name, "") for name in currencies]
        start = [defused(row.key), len(row.runs), bill.gpu_hours, bill.worker_hours]
        table.append([*start, *numbers])
    file = attach(
        joined(csv_lines(names, table)),
        filename=f"costs-{team.slug}-by-{by}.csv",
        content_type="text/csv; charset=utf-8",
    )
    return mark_for_spreadsheets(file)


class PriceForm(forms.ModelForm[Price]):
    unit = forms.ChoiceField(
        choices=Unit, widget=forms.Select(attrs={"class": "form-select"})
    )

    class Meta:
        model = Price
        fields = ("unit", "name", "amount", "currency", "valid_from")
        help_texts: ClassVar[dict[str, str]] = {
            "name": "As a worker or server reports its GPU, or cpu; or the model of a "
            "judge.",
            "amount": "Empty: not set from this day on.",
            "currency": "A code such as EUR.",
            "valid_from": "From midnight UTC; earlier use keeps its price. A later row "
            "of the same day replaces it.",
        }
        widgets: ClassVar[dict[str, forms.Widget]] = {
            "name": forms.TextInput(
                attrs={"class": "form-control", "list": "used-items"}
            ),
            "amount": forms.NumberInput(
                attrs={"class": "form-control", "min": 0, "step": "any"}
            ),
            "currency": forms.TextInput(attrs={"class": "form-control"}),
            "valid_from": forms.DateInput(
                attrs={"class": "form-control", "type": "date"}
            ),
        }

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        return CPU if name.lower() == CPU else name

    def clean_currency(self) -> str:
        currency: str = self.cleaned_data["currency"]
        return currency.upper()


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_changing_membership)
def team_prices(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """Add a price. Prices are never changed."""
    newest = team.prices.exclude(currency="").order_by("-pk").first()
    form = PriceForm(
        request.POST or None,
        initial={
            "unit": Unit.GPU_HOUR,
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
        "form": form,
        "items": list_items(team),
    }
    status = 422 if form.errors else 200
    return render(request, "costs/prices.html", context, status=status)
