"""An import's files in parts, for scripts: as datasets' files, the answers are JSON."""

from __future__ import annotations

from django import forms
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.datasets.views.transfer import receive_part, refuse, refuse_form
from dashboard.exchange.import_files import append_part, begin_file
from dashboard.exchange.models import ImportFile
from dashboard.exchange.views.imports import get_import


class FileForm(forms.Form):
    filename = forms.CharField(max_length=300)
    num_bytes = forms.IntegerField(min_value=0)
    fingerprint = forms.CharField(max_length=64, required=False)


@require_POST
def run_import_files(request: HttpRequest, team: str, import_id: int) -> JsonResponse:
    found = get_import(get_writable_team(request, team), import_id)
    form = FileForm(request.POST)
    if not form.is_valid():
        return refuse_form(form)
    try:
        return _tell(begin_file(found, **form.cleaned_data))
    except ValueError as error:
        return refuse(str(error), status=422)


@require_http_methods(["GET", "POST"])
def run_import_parts(
    request: HttpRequest, team: str, import_id: int, file_id: int
) -> JsonResponse:
    is_post = request.method == "POST"
    team_ = (get_writable_team if is_post else get_team)(request, team)
    file = get_import(team_, import_id).files.filter(pk=file_id).first()
    if file is None:
        raise Http404("No such file.")
    if not is_post:
        return _tell(file)

    def append(offset: int, size: int) -> ImportFile:
        append_part(file, offset=offset, part=request, size=size)
        return file

    return receive_part(request, append, lambda: file, _tell)


def _tell(file: ImportFile, status: int = 200) -> JsonResponse:
    """Where to go on; with 409, because the part did not begin there."""
    told = {"id": file.pk, "size": file.num_bytes, "received": file.num_received}
    return JsonResponse(told, status=status)
