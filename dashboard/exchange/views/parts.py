"""An import's files in parts, for scripts: as datasets' files, the answers are JSON."""

from __future__ import annotations

import errno

from django import forms
from django.conf import settings
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.exchange.imports.files import OutOfStep, append_part, begin_file
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
        wrong = [f"{name}: {said}" for name, e in form.errors.items() for said in e]
        return _refuse(" ".join(wrong), status=422)
    try:
        return _tell(begin_file(found, **form.cleaned_data))
    except ValueError as error:
        return _refuse(str(error), status=422)


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
    try:
        append_part(
            file,
            offset=_number(request.GET.get("offset", "")),
            part=request,
            size=_number(request.headers.get("content-length", "")),
        )
    except OutOfStep:
        return _tell(file, status=409)
    except ValueError as error:
        return _refuse(str(error), status=422)
    except OSError as error:
        return _refuse(_disk_fault(error), status=507)
    return _tell(file)


def _tell(file: ImportFile, status: int = 200) -> JsonResponse:
    """Where to go on; with 409, because the part did not begin there."""
    told = {"id": file.pk, "size": file.num_bytes, "received": file.num_received}
    return JsonResponse(told, status=status)


def _refuse(sentence: str, status: int) -> JsonResponse:
    return JsonResponse({"error": sentence}, status=status)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(
            f"offset and content-length are whole numbers of bytes; got {text[:40]!r}."
        )
    return int(text)


def _disk_fault(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"The disk that holds {settings.COHORT_DATA} is full. Free some space "
            "there, then go on."
        )
    return f"The part could not be stored: {error.strerror or error}."
