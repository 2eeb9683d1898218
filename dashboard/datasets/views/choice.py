from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership_for
from dashboard.accounts.models import User
from dashboard.datasets.fetching.choices import Choice
from dashboard.datasets.fetching.fetches import choices_of, choose
from dashboard.datasets.models import Upload
from dashboard.datasets.queries import get_upload
from dashboard.jobs.queue import notify_workers


@require_http_methods(["GET", "POST"])
def dataset_choice(request: HttpRequest, team: str, upload_id: int) -> HttpResponse:
    """Which split or file of a hub dataset is fetched."""
    is_post = request.method == "POST"
    team_ = get_membership_for(request, team).team
    upload = get_upload(team_, upload_id)
    choices = choices_of(upload)
    if not choices:
        return redirect("dataset_map", team_.slug, upload.pk)
    if not is_post:
        return _render(request, upload, choices)
    wanted = request.POST.get("choice", "")
    picked = next((one for one in choices if one.name == wanted), None)
    if picked is None:
        problem = "Nothing was chosen. Choose a split or a file."
        return _render(request, upload, choices, problem, status=422)
    assert isinstance(request.user, User)
    job = choose(upload, picked, request.user)
    notify_workers("default")
    return redirect("dataset_import", team_.slug, job.pk)


def _render(
    request: HttpRequest,
    upload: Upload,
    choices: list[Choice],
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    groups = [
        ("Splits", [one for one in choices if one.is_split]),
        ("Files", [one for one in choices if not one.is_split]),
    ]  # each of one commit
    context = {
        "team": upload.team,
        "upload": upload,
        "origin": upload.origin,
        "groups": [(title, members) for title, members in groups if members],
        "num_shown": len(choices),
        "problem": problem,
    }
    return render(request, "datasets/choice.html", context, status=status)
