from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import get_any_dataset, versions_with_use
from dashboard.datasets.row_exports import (
    TYPES,
    WRITERS,
    RowsMissing,
    check_rows,
    filename,
    joined,
)
from dashboard.datasets.views.detail import chosen
from dashboard.project.downloads import Streamed


@require_GET
def dataset_download(
    request: HttpRequest, team: str, dataset_id: int
) -> HttpResponseBase:
    """One of the trash too: whoever deletes it may want to keep a copy."""
    dataset = get_any_dataset(get_team(request, team), dataset_id)
    version = chosen(versions_with_use(dataset), request.GET.get("version"))
    version.dataset = dataset  # which is at hand
    suffix = request.GET.get("format") or "jsonl"
    if suffix not in WRITERS:
        raise Http404("No such format.")
    try:
        check_rows(version)
    except RowsMissing as error:
        messages.error(request, str(error))
        return redirect("dataset", team, dataset.pk)
    return send_rows(version, suffix)


def send_rows(version: DatasetVersion, suffix: str) -> HttpResponseBase:
    """As a file of this format, of rows that are known to be there."""
    name = content_disposition_header(True, filename(version, suffix))
    return Streamed(
        joined(WRITERS[suffix](version)),
        content_type=f"{TYPES[suffix]}; charset=utf-8",
        headers={"Content-Disposition": name},
    )
