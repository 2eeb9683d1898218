from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.forms import GroupFilterForm
from dashboard.samples.groups import (
    MAX_CELLS,
    StepPlace,
    count_signals,
    find_place,
    list_groups,
    make_cards,
    read_signal_map,
)


@require_safe
def groups(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = GroupFilterForm.read(request.GET)
    place = find_place(run, form.value("step"))
    context = {
        "team": team_,
        "run": run,
        "tab": "groups",
        "form": form,
        "place": place,
        **(_describe(run, place, form) if place else {}),
    }
    return render(request, "samples/groups.html", context)


def _describe(run: Run, place: StepPlace, form: GroupFilterForm) -> dict[str, Any]:
    page = list_groups(
        run,
        place.step,
        signal=form.value("signal"),
        sort=form.value("sort"),
        page=form.value("page"),
    )
    return {
        "page": page,
        "cards": make_cards(run, list(page)),
        "counts": count_signals(run, place.step),
        "cells": read_signal_map(run, place.step),
        "max_cells": MAX_CELLS,
        "wanted": form.value("step"),
        "signal": form.value("signal"),
        "sort": form.value("sort"),
    }
