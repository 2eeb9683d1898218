"""Files in parts, for scripts: the answers are JSON.

POST uploads begins, or finds what was begun; POST uploads/1/parts?offset=0 sends a part
as the request's body; GET tells how much is here. The page of uploads then takes the
file for whole.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import User
from dashboard.datasets.import_forms import TransferForm
from dashboard.datasets.imports import forget_what_is_old
from dashboard.datasets.models import Upload
from dashboard.datasets.queries import get_upload
from dashboard.datasets.uploads import OffsetMismatch, append_part, begin_transfer
from dashboard.datasets.views.upload import asked_dataset


@require_POST
def dataset_uploads(request: HttpRequest, team: str) -> JsonResponse:
    team_ = get_writable_team(request, team)
    assert isinstance(request.user, User)
    dataset = asked_dataset(request, team_)
    form = TransferForm(request.POST)
    if not form.is_valid():
        return refuse_form(form)
    forget_what_is_old()
    try:
        upload = begin_transfer(
            team=team_, user=request.user, dataset=dataset, **form.cleaned_data
        )
    except ValueError as error:
        return refuse(str(error), status=422)
    return _tell(upload)


@require_http_methods(["GET", "POST"])
def dataset_upload_parts(
    request: HttpRequest, team: str, upload_id: int
) -> JsonResponse:
    if request.method == "GET":
        return _tell(get_upload(get_team(request, team), upload_id))
    team_ = get_writable_team(request, team)
    user = request.user
    assert isinstance(user, User)

    def append(offset: int, size: int) -> Upload:
        return append_part(
            team=team_,
            user=user,
            upload_id=upload_id,
            offset=offset,
            part=request,
            size=size,
        )

    return receive_part(request, append, lambda: get_upload(team_, upload_id), _tell)


def receive_part(
    request: HttpRequest,
    append: Callable[[int, int], Any],
    find: Callable[[], Any],
    tell: Callable[..., JsonResponse],
) -> JsonResponse:
    """Append the body by `append(offset, size)`; 409 tells where the file ends."""
    try:
        offset = _number(request.GET.get("offset", ""))
        size = _number(request.headers.get("content-length", ""))
        return tell(append(offset, size))
    except OffsetMismatch:
        return tell(find(), status=409)
    except ValueError as error:
        return refuse(str(error), status=422)
    except OSError as error:
        return refuse(_disk_fault(error), status=507)


def _tell(upload: Upload, status: int = 200) -> JsonResponse:
    """Where to go on; with 409, because the part did not begin there."""
    told = {
        "id": upload.pk,
        "filename": upload.filename,
        "size": upload.num_bytes,
        "received": upload.num_received,
        "is_whole": upload.is_whole,
    }
    return JsonResponse(told, status=status)


def refuse(sentence: str, status: int) -> JsonResponse:
    return JsonResponse({"error": sentence}, status=status)


def refuse_form(form: forms.Form) -> JsonResponse:
    wrong = [f"{name}: {said}" for name, each in form.errors.items() for said in each]
    return refuse(" ".join(wrong), status=422)


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
