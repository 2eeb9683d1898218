from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership_for
from dashboard.datasets.import_forms import TargetForm
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import get_dataset, versions_with_use
from dashboard.datasets.row_filters import RowFilterForm
from dashboard.datasets.row_pages import read_number
from dashboard.datasets.row_search import COUNT_SECONDS, Count, Search, count_matching
from dashboard.datasets.selections import source_of_view
from dashboard.datasets.views.detail import chosen
from dashboard.datasets.views.imports import follow


@require_http_methods(["GET", "HEAD", "POST"])
def dataset_save(request: HttpRequest, team: str, dataset_id: int) -> HttpResponse:
    """The rows that a view shows, as a dataset. The address holds the view."""
    is_post = request.method == "POST"
    membership = get_membership_for(request, team)
    dataset = get_dataset(membership.team, dataset_id)
    version = chosen(versions_with_use(dataset), request.GET.get("version"))
    version.dataset = dataset  # with its team, which is at hand
    view = RowFilterForm.read(version, request.GET)
    if view.errors:
        raise Http404("The address holds no such view.")
    count = _count(request, version, view)
    form = TargetForm(
        membership.team,
        name=f"{dataset.name[:70]} selection",
        data=request.POST if is_post else None,
    )
    if is_post and form.is_valid():
        source = source_of_view(version, view)
        job = form.start(parent=version, source=source, user=membership.user)
        if job:
            return follow(request, job)
    context = {
        "team": membership.team,
        "dataset": dataset,
        "version": version,
        "view": view,
        "count": count,
        "form": form,
        "can_write": membership.can_write,
    }
    is_count = "counted" in request.GET and "HX-Request" in request.headers
    template = "save_count" if is_count else "save"
    status = 422 if is_post else 200
    return render(request, f"datasets/{template}.html", context, status=status)


def _count(request: HttpRequest, version: DatasetVersion, view: RowFilterForm) -> Count:
    """As far as the time goes; the page asks on from where it came."""
    counted = min(read_number(request.GET.get("counted")) or 0, version.num_rows)
    matching = min(read_number(request.GET.get("matching")) or 0, counted)
    return count_matching(
        Search(version=version, conditions=view.conditions),
        seconds=COUNT_SECONDS,
        before=Count(num_matching=matching, num_looked=counted, is_exact=False),
    )
