from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_membership
from dashboard.accounts.models import User
from dashboard.datasets.models import DatasetVersion, place_of
from dashboard.datasets.queries import (
    find_parents,
    find_trashed,
    get_any_dataset,
    list_uses,
    versions_with_use,
)
from dashboard.datasets.row_filters import RowFilterForm
from dashboard.datasets.row_pages import read_page, read_place
from dashboard.datasets.views.trash import show_trashed


@require_GET
def dataset(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    team_ = membership.team
    dataset_ = get_any_dataset(team_, dataset_id)
    if dataset_.trashed_at and (trashed := find_trashed(team_, dataset_id)):
        return show_trashed(request, team_, trashed)
    versions = versions_with_use(dataset_)
    version = chosen(versions, request.GET.get("version"))
    form = RowFilterForm.read(version, request.GET)
    page = read_page(version, form, read_place(request.GET, version.num_rows))
    uses, parents = list_uses(dataset_), find_parents(team_, versions)
    context = {
        "team": team_,
        "dataset": dataset_,
        "tab": "rows",
        "versions": [
            (one, uses.get(one.pk, []), parents.get(one.source.get("parent_id")))
            for one in versions
        ],
        "version": version,
        "form": form,
        "page": page,
        "can_write": membership.can_write,
        "left_out": {"shown": version.left_out, "count": version.num_left_out},
        "left_out_place": place_of(version.source.get("format")),
    }
    is_further = "on" in request.GET and "HX-Request" in request.headers
    template = "rows_further" if is_further else "detail"
    return render(request, f"datasets/{template}.html", context)


def chosen(versions: list[DatasetVersion], number: str | None) -> DatasetVersion:
    """The version asked for by number; the newest when none is."""
    if not number:
        return versions[0]
    for version in versions:
        if str(version.number) == number:
            return version
    raise Http404("No such version.")
