from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.queries import list_datasets


@require_GET
def datasets(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    context = {"team": team_, "datasets": list_datasets(team_)}
    return render(request, "datasets/list.html", context)
