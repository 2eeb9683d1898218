from __future__ import annotations

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.models import DatasetVersion, place_of
from dashboard.datasets.queries import get_dataset, search_rows, versions_with_use

ROWS_PER_PAGE = 20


@require_GET
def dataset(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    dataset_ = get_dataset(team_, dataset_id)
    versions = versions_with_use(dataset_)
    version = _chosen(versions, request.GET.get("version"))
    text = request.GET.get("q", "")
    pages = Paginator(search_rows(version, text), ROWS_PER_PAGE)
    context = {
        "team": team_,
        "dataset": dataset_,
        "versions": versions,
        "version": version,
        "q": text,
        "page": pages.get_page(request.GET.get("page")),
        "left_out": {"shown": version.left_out, "count": version.num_left_out},
        "left_out_place": place_of(version.source.get("format")),
    }
    return render(request, "datasets/detail.html", context)


def _chosen(versions: list[DatasetVersion], number: str | None) -> DatasetVersion:
    """The version asked for by number; the newest when none is."""
    if not number:
        return versions[0]
    for version in versions:
        if str(version.number) == number:
            return version
    raise Http404("No such version.")
