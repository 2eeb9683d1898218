from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team
from dashboard.datasets.token_preview import (
    SETTINGS,
    Preview,
    preview_version,
    read_row,
)
from dashboard.runs.config.fields import read_tree
from dashboard.runs.launch.base_models import check_model
from dashboard.runs.launch.form import LaunchForm
from dashboard.runs.launch.form_fields import choices_of
from dashboard.runs.launch.initial_values import default_start


@require_POST
def run_new_prompt(request: HttpRequest, team: str) -> HttpResponse:
    """A row of the chosen dataset as the chosen model sees it; stores nothing."""
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    form = LaunchForm.from_post(request.POST, choices, default_start())
    context = {
        "preview": _preview(team_, form, read_row(request.POST)),
        "preview_url": reverse("run_new_prompt", args=[team_.slug]),
        "preview_form": "#launch-form",
    }
    return render(request, "datasets/prompt_preview.html", context)


def _preview(team: Team, form: LaunchForm, row: int) -> Preview:
    if form.dataset_version is None:
        return Preview(problem="Choose a dataset: its first rows are shown here.")
    if problem := check_model(form.model_path):
        return Preview(problem=problem)
    data = read_tree(form.texts)["data"]
    names = (*SETTINGS, "max_prompt_tokens")
    return preview_version(
        team,
        form.dataset_version,
        model=form.model_path,
        row=row,
        data={name: data[name] for name in names},
    )
