from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.analysis.differences import KINDS, find_difference, read_changes
from dashboard.datasets.models import DatasetVersion, VersionDifference
from dashboard.datasets.queries import get_dataset, versions_with_use
from dashboard.datasets.row_pages import read_number
from dashboard.datasets.views.detail import chosen


@require_GET
def dataset_changes(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    dataset = get_dataset(team_, dataset_id)
    versions = versions_with_use(dataset)
    new = chosen(versions, request.GET.get("version"))
    old = _old(versions, new, request.GET.get("old"))
    found = find_difference(old, new) if old and old != new else None
    context = {
        "team": team_,
        "dataset": dataset,
        "tab": "changes",
        "versions": versions,
        "version": new,
        "old": old,
        "found": found,
        "page": _page(request, found) if found and found.is_done else None,
        "kinds": list(KINDS),
    }
    return render(request, "datasets/changes.html", context)


def _old(
    versions: list[DatasetVersion], new: DatasetVersion, wanted: str | None
) -> DatasetVersion | None:
    """The one asked for; else the one before the new one, where there is one."""
    if wanted:
        return chosen(versions, wanted)
    return next((one for one in versions if one.number < new.number), None)


def _page(request: HttpRequest, found: VersionDifference) -> object:
    assert found.result is not None
    kind = request.GET.get("kind", "")
    if kind not in KINDS:
        kind = next((kind for kind in KINDS if found.result[kind]), "changed")
    return read_changes(found, kind, read_number(request.GET.get("from")) or 0)
