from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import get_dataset, versions_with_use
from dashboard.datasets.token_preview import (
    Preview,
    list_models,
    preview_version,
    read_row,
)
from dashboard.datasets.version_forms import PromptForm
from dashboard.datasets.views.detail import chosen


@require_http_methods(["GET", "HEAD", "POST"])
def dataset_prompt(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    """The page; what it is sent it answers with the preview, and stores nothing."""
    if request.method == "POST":
        return _preview(request, get_writable_team(request, team), dataset_id)
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    dataset = get_dataset(membership.team, dataset_id)
    versions = versions_with_use(dataset)
    models = list_models(membership.team)
    context = {
        "team": membership.team,
        "dataset": dataset,
        "versions": versions,
        "version": chosen(versions, request.GET.get("version")),
        "tab": "prompt",
        "form": PromptForm.prefilled(request.GET, model=next(iter(models), "")),
        "models": models,
        "can_write": membership.can_write,
        **_place(membership.team, dataset_id),
    }
    return render(request, "datasets/prompt_page.html", context)


def _place(team: Team, dataset_id: int) -> dict[str, Any]:
    return {
        "preview_url": reverse("dataset_prompt", args=[team.slug, dataset_id]),
        "preview_form": "#prompt-form",
    }


def _preview(request: HttpRequest, team: Team, dataset_id: int) -> HttpResponse:
    versions = versions_with_use(get_dataset(team, dataset_id))
    version = _by_key(versions, request.POST.get("dataset"))
    form = PromptForm(request.POST)
    if form.is_valid():
        preview = preview_version(
            team,
            version,
            model=form.cleaned_data["model"],
            row=read_row(request.POST),
            data=form.settings,
        )
    else:
        preview = Preview(problem=form.first_problem)
    context = {"preview": preview, **_place(team, dataset_id)}
    return render(request, "datasets/prompt_preview.html", context)


def _by_key(versions: list[DatasetVersion], key: str | None) -> DatasetVersion:
    """The version by the key that a launch form takes; the newest without one."""
    if not key:
        return versions[0]
    for version in versions:
        if str(version.pk) == key:
            return version
    raise Http404("No such version.")
