from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.queries import list_datasets, list_trashed


@require_GET
def datasets(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    context = {
        "team": team_,
        "datasets": list_datasets(team_),
        "has_trash": list_trashed(team_).exists(),
    }
    return render(request, "datasets/list.html", context)
