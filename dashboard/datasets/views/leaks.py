from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.accounts.models import Team
from dashboard.datasets.analysis.leaks import KINDS, LeakPage, find_leak, read_leaks
from dashboard.datasets.models import DatasetVersion, VersionLeak
from dashboard.datasets.queries import get_dataset, list_versions, versions_with_use
from dashboard.datasets.row_pages import read_number
from dashboard.datasets.splits import other_half
from dashboard.datasets.views.detail import chosen


@require_GET
def dataset_leaks(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    dataset = get_dataset(team_, dataset_id)
    versions = versions_with_use(dataset)
    version = chosen(versions, request.GET.get("version"))
    other = _other(team_, version, request.GET.get("against"))
    found = find_leak(version, other) if other and other != version else None
    page = _page(request, found) if found and found.is_done else None
    context = {
        "team": team_,
        "dataset": dataset,
        "tab": "leaks",
        "versions": versions,
        "version": version,
        "others": list_versions(team_).exclude(pk=version.pk),
        "other": other,
        "found": found,
        "page": page,
        "kinds": [(kind, KINDS[kind], _count(found, kind)) for kind in KINDS],
    }
    return render(request, "datasets/leaks.html", context)


def _other(
    team: Team, version: DatasetVersion, wanted: str | None
) -> DatasetVersion | None:
    """The one asked for by its key; else the other half of a split."""
    if not wanted:
        return other_half(version)
    found = list_versions(team).filter(pk=read_number(wanted) or 0).first()
    if found is None:
        raise Http404("No such version.")
    return found


def _count(found: VersionLeak | None, kind: str) -> int:
    return found.result[kind] if found and found.result else 0


def _page(request: HttpRequest, found: VersionLeak) -> LeakPage:
    assert found.result is not None
    kind = request.GET.get("kind", "")
    if kind not in KINDS:
        kind = next((kind for kind in KINDS if found.result[kind]), "exact")
    return read_leaks(found, kind, read_number(request.GET.get("from")) or 0)
