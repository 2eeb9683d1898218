from __future__ import annotations

from collections.abc import Mapping

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.forms import UploadForm
from dashboard.datasets.models import Dataset
from dashboard.datasets.queries import get_dataset
from dashboard.datasets.refusals import Refusals
from dashboard.datasets.uploads import forget_upload, peek, store_upload


@require_http_methods(["GET", "POST"])
def dataset_upload(request: HttpRequest, team: str) -> HttpResponse:
    if request.method == "POST":
        return _receive(request, get_writable_team(request, team))
    team_ = get_team(request, team)
    context = {"form": UploadForm(), "dataset": _dataset(request, team_)}
    return _render(request, team_, context)


def _receive(request: HttpRequest, team: Team) -> HttpResponse:
    assert isinstance(request.user, User)
    dataset = _dataset(request, team)
    form = UploadForm(request.POST, request.FILES)
    refusals = Refusals()
    if form.is_valid():
        file = form.cleaned_data["file"]
        try:
            upload = store_upload(
                team=team, user=request.user, file=file, dataset=dataset
            )
        except ValueError as error:
            form.add_error("file", str(error))
        else:
            seen = peek(upload)
            if seen.records:
                return redirect("dataset_map", team.slug, upload.pk)
            # Not one row could be read, so there is nothing to map.
            refusals = seen.refusals
            forget_upload(upload)
    context = {"form": form, "dataset": dataset, "refusals": refusals}
    return _render(request, team, context, status=422)


def _dataset(request: HttpRequest, team: Team) -> Dataset | None:
    wanted = request.GET.get("dataset")
    if not wanted:
        return None
    if not wanted.isdecimal() or len(wanted) > 18:
        raise Http404("No such dataset.")
    return get_dataset(team, int(wanted))


def _render(
    request: HttpRequest, team: Team, context: Mapping[str, object], status: int = 200
) -> HttpResponse:
    context = {**context, "team": team}
    return render(request, "datasets/upload.html", context, status=status)
