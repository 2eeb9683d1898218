from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.datasets.import_forms import MappingForm
from dashboard.datasets.imports import Peek, map_records, try_peek
from dashboard.datasets.models import Upload
from dashboard.datasets.parsing.records import Refusal
from dashboard.datasets.queries import get_upload
from dashboard.datasets.token_preview import NUM_ROWS, Preview, preview_row, read_row
from dashboard.datasets.version_forms import PromptForm


@require_POST
def dataset_map_prompt(request: HttpRequest, team: str, upload_id: int) -> HttpResponse:
    """A row as the chosen columns make it and the model sees it; stores nothing."""
    team_ = get_writable_team(request, team)
    upload = get_upload(team_, upload_id)
    seen = try_peek(upload) if upload.is_whole else None
    if seen is None:
        preview = Preview(problem="The file is no longer here. Upload it again.")
    else:
        preview = _preview(request, upload, seen)
    context = {"preview": preview, **preview_place(upload)}
    return render(request, "datasets/prompt_preview.html", context)


def preview_place(upload: Upload) -> dict[str, Any]:
    address = reverse("dataset_map_prompt", args=[upload.team.slug, upload.pk])
    return {"preview_url": address, "preview_form": "#mapping, #prompt-form"}


def _preview(request: HttpRequest, upload: Upload, seen: Peek) -> Preview:
    form = PromptForm(request.POST)
    if not form.is_valid():
        return Preview(problem=form.first_problem)
    columns = MappingForm(upload, seen.names, request.POST)
    columns.is_valid()
    records = seen.records[:NUM_ROWS]
    row = min(read_row(request.POST), len(records) - 1)
    (of,) = map_records(upload, [records[row]], columns.mapping)
    if isinstance(of, Refusal):
        return Preview(problem=str(of), row=row, num_rows=len(records))
    return preview_row(
        upload.team,
        of,
        model=form.cleaned_data["model"],
        row=row,
        num_rows=len(records),
        data=form.settings,
    )
