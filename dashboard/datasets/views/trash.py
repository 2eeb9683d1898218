from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_membership, get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.import_forms import RestoreForm
from dashboard.datasets.models import Dataset
from dashboard.datasets.queries import find_trashed, get_dataset, list_trashed
from dashboard.datasets.trash import (
    KEPT,
    delete_dataset,
    restore_dataset,
    trash_dataset,
)


@require_GET
def datasets_trash(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    context = {"team": team_, "datasets": list_trashed(team_), "kept": KEPT.days}
    return render(request, "datasets/trash.html", context)


@require_POST
def dataset_trash(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    """Put it away; `restore` or `delete` what was."""
    team_ = get_writable_team(request, team)
    assert isinstance(request.user, User)
    if "restore" not in request.POST and "delete" not in request.POST:
        dataset = find_trashed(team_, dataset_id) or get_dataset(team_, dataset_id)
        trash_dataset(dataset, request.user)
        messages.success(request, f"{dataset} is in the trash.")
        return redirect("datasets", team)
    trashed = find_trashed(team_, dataset_id)
    if trashed is None:
        raise Http404("No such dataset in the trash.")
    if "delete" in request.POST:
        return _delete(request, team_, trashed)
    return _restore(request, team_, trashed)


def _restore(request: HttpRequest, team: Team, dataset: Dataset) -> HttpResponse:
    assert isinstance(request.user, User)
    form = RestoreForm(request.POST)
    if form.is_valid():
        name = form.cleaned_data["name"]
        try:
            restore_dataset(dataset, name=name, user=request.user)
        except ValueError as error:
            form.add_error("name", str(error))
        else:
            messages.success(request, f"{name} is restored.")
            return redirect("dataset", team.slug, dataset.pk)
    return show_trashed(request, team, dataset, form)


def _delete(request: HttpRequest, team: Team, dataset: Dataset) -> HttpResponse:
    assert isinstance(request.user, User)
    try:
        delete_dataset(dataset, request.user)
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("dataset", team.slug, dataset.pk)
    messages.success(request, f"{dataset} is deleted for good.")
    return redirect("datasets_trash", team.slug)


def show_trashed(
    request: HttpRequest, team: Team, dataset: Dataset, form: RestoreForm | None = None
) -> HttpResponse:
    assert isinstance(request.user, User)
    assert dataset.trashed_at
    context = {
        "team": team,
        "dataset": dataset,
        "form": form or RestoreForm(initial={"name": dataset.name}),
        "forgotten_at": dataset.trashed_at + KEPT,
        "kept": KEPT.days,
        "can_write": get_membership(request.user, team.slug).can_write,
    }
    status = 422 if form else 200
    return render(request, "datasets/trashed.html", context, status=status)
