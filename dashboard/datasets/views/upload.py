from __future__ import annotations

from collections.abc import Mapping

from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.fetching.fetches import begin_fetch
from dashboard.datasets.fetching.links import read
from dashboard.datasets.import_forms import LinkForm, PasteForm, UploadForm
from dashboard.datasets.imports import (
    finish_transfer,
    forget_upload,
    forget_what_is_old,
    peek,
    store_upload,
)
from dashboard.datasets.models import Dataset, Upload
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.queries import get_dataset, get_upload, list_waiting
from dashboard.jobs.queue import notify_workers


@require_http_methods(["GET", "POST"])
def dataset_upload(request: HttpRequest, team: str) -> HttpResponse:
    if request.method == "POST":
        team_ = get_writable_team(request, team)
        return (_fetch if "link" in request.POST else _receive)(request, team_)
    team_ = get_team(request, team)
    context = {
        "form": UploadForm(),
        "paste": PasteForm(),
        "link": LinkForm(),
        "dataset": asked_dataset(request, team_),
    }
    return _render(request, team_, context)


def _receive(request: HttpRequest, team: Team) -> HttpResponse:
    dataset = asked_dataset(request, team)
    is_pasted, is_in_parts = "rows" in request.POST, "upload" in request.POST
    form = UploadForm(request.POST, request.FILES)
    if is_pasted or is_in_parts:
        form.errors.clear()  # no file comes along
    paste = PasteForm(request.POST if is_pasted else None)
    refusals = Refusals()
    try:
        upload = (
            _sent_in_parts(request, team)
            if is_in_parts
            else _sent_at_once(request, team, dataset, paste if is_pasted else form)
        )
    except ValueError as error:
        if is_pasted:
            paste.add_error("rows", str(error))
        else:
            form.add_error("file", str(error))
        upload = None
    if upload:
        seen = peek(upload)
        if seen.records:
            return redirect("dataset_map", team.slug, upload.pk)
        # Not one row could be read, so there is nothing to map.
        refusals = seen.refusals
        forget_upload(upload)
    context = {
        "form": form,
        "paste": paste,
        "link": LinkForm(),
        "dataset": dataset,
        "refusals": refusals,
    }
    return _render(request, team, context, status=422)


def _fetch(request: HttpRequest, team: Team) -> HttpResponse:
    """Leave it to a worker; nothing is asked of anybody here."""
    assert isinstance(request.user, User)
    dataset = asked_dataset(request, team)
    form = LinkForm(request.POST)
    if form.is_valid():
        given = form.cleaned_data
        try:
            link = read(given["link"], revision=given["revision"], part=given["part"])
            forget_what_is_old()
            job = begin_fetch(team=team, user=request.user, link=link, dataset=dataset)
        except ValueError as error:
            form.add_error("link", str(error))
        else:
            notify_workers("default")
            return redirect("dataset_import", team.slug, job.pk)
    context = {
        "form": UploadForm(),
        "paste": PasteForm(),
        "link": form,
        "dataset": dataset,
    }
    return _render(request, team, context, status=422)


def _sent_at_once(
    request: HttpRequest,
    team: Team,
    dataset: Dataset | None,
    form: UploadForm | PasteForm,
) -> Upload | None:
    """None where the form says what is wrong."""
    assert isinstance(request.user, User)
    if not form.is_valid():
        return None
    file = (
        form.cleaned_data["file"]
        if isinstance(form, UploadForm)
        else SimpleUploadedFile("pasted rows", form.cleaned_data["rows"].encode())
    )
    return store_upload(team=team, user=request.user, file=file, dataset=dataset)


def _sent_in_parts(request: HttpRequest, team: Team) -> Upload:
    upload = get_upload(team, _id_of(request.POST["upload"], "No such upload."))
    if upload.is_linked and not upload.is_whole:
        raise Http404("No such upload.")  # of parts: a worker fetches this one
    if not upload.is_whole:
        finish_transfer(upload)
    return upload


def asked_dataset(request: HttpRequest, team: Team) -> Dataset | None:
    wanted = request.GET.get("dataset")
    return get_dataset(team, _id_of(wanted, "No such dataset.")) if wanted else None


def _id_of(text: str, missing: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Http404(missing)
    return int(text)


def _render(
    request: HttpRequest, team: Team, context: Mapping[str, object], status: int = 200
) -> HttpResponse:
    context = {**context, "team": team, "waiting": list_waiting(team)}
    return render(request, "datasets/upload.html", context, status=status)
