"""Files for datasets: uploaded, pasted, fetched, sent in parts; and their imports."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from dashboard.accounts.access import (
    get_membership_for,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.datasets.fetching.fetches import begin_fetch, choices_of
from dashboard.datasets.fetching.links import read
from dashboard.datasets.import_forms import (
    LinkForm,
    PasteForm,
    TransferForm,
    UploadForm,
    form_error,
)
from dashboard.datasets.imports import (
    delete_upload,
    finish_transfer,
    peek,
    purge_uploads,
    request_stop,
    store_upload,
)
from dashboard.datasets.jobs import retry_job
from dashboard.datasets.models import Dataset, ImportJob, Upload
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.queries import (
    find_upload,
    get_dataset,
    get_import_job,
    get_upload,
    list_waiting,
)
from dashboard.datasets.uploads import OffsetMismatch, append_part, begin_transfer
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import notify_workers, reap_of, waiting_reason
from dashboard.pages.requests import Request, read_id
from dashboard.project.errors import UserError, code_of

TABS = {"link": "link", "rows": "paste"}  # by a field of their forms


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def dataset_upload(request: Request, team: Team) -> HttpResponse:
    dataset = _requested_dataset(request, team)
    if request.method == "POST":
        return (_fetch if "link" in request.POST else _receive)(request, team, dataset)
    return _render(request, team, dataset)


def _receive(request: Request, team: Team, dataset: Dataset | None) -> HttpResponse:
    is_pasted, is_in_parts = "rows" in request.POST, "upload" in request.POST
    form = UploadForm(request.POST, request.FILES)
    if is_pasted or is_in_parts:
        form.errors.clear()  # the request has no file
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
            paste.add_error("rows", form_error(error))
        else:
            form.add_error("file", form_error(error))
        upload = None
    if upload:
        seen = peek(upload)
        if seen.records:
            return redirect("dataset_map", team.slug, upload.pk)
        # No row could be read, so there is nothing to map.
        refusals = seen.refusals
        delete_upload(upload)
    forms = {"form": form, "paste": paste, "refusals": refusals}
    return _render(request, team, dataset, status=422, **forms)


def _fetch(request: Request, team: Team, dataset: Dataset | None) -> HttpResponse:
    """Queue the download; a worker sends the request, never this process."""
    form = LinkForm(request.POST)
    if form.is_valid():
        fields = form.cleaned_data
        try:
            link = read(
                fields["link"], revision=fields["revision"], part=fields["part"]
            )
            purge_uploads()
            job = begin_fetch(team=team, user=request.user, link=link, dataset=dataset)
        except ValueError as error:
            form.add_error("link", form_error(error))
        else:
            notify_workers("default")
            return redirect("dataset_import", team.slug, job.pk)
    return _render(request, team, dataset, status=422, link=form)


def _sent_at_once(
    request: Request,
    team: Team,
    dataset: Dataset | None,
    form: UploadForm | PasteForm,
) -> Upload | None:
    """Store the file or pasted rows; None if the form has errors."""
    if not form.is_valid():
        return None
    file = (
        form.cleaned_data["file"]
        if isinstance(form, UploadForm)
        else SimpleUploadedFile("pasted rows", form.cleaned_data["rows"].encode())
    )
    return store_upload(team=team, user=request.user, file=file, dataset=dataset)


def _sent_in_parts(request: Request, team: Team) -> Upload:
    upload = get_upload(team, read_id(request.POST["upload"]) or 0)
    if upload.is_linked and not upload.is_whole:
        raise Http404("No such upload.")  # in parts: a worker downloads this one
    if not upload.is_whole:
        finish_transfer(upload)
    return upload


def _requested_dataset(request: Request, team: Team) -> Dataset | None:
    key = request.GET.get("dataset")
    return get_dataset(team, read_id(key) or 0) if key else None


def _render(
    request: Request,
    team: Team,
    dataset: Dataset | None,
    *,
    status: int = 200,
    **forms: object,
) -> HttpResponse:
    # A form with errors is shown on its own tab.
    field = next((name for name in TABS if name in request.POST), "file")
    tab = TABS.get(field) or request.GET.get("from", "")
    context = {
        "form": UploadForm(),
        "paste": PasteForm(),
        "link": LinkForm(),
        "dataset": dataset,
        "team": team,
        "tab": tab if tab in TABS.values() else "file",
        "unfinished": [
            upload
            for upload in list_waiting(team)
            if not (upload.is_whole or upload.is_linked)
        ],
        **forms,
    }
    return render(request, "datasets/upload.html", context, status=status)


# Uploads in parts, for the script of the page; responses are JSON. POST uploads starts
# or resumes one, POST uploads/1/parts?offset=0 appends the body, GET returns the
# progress. The upload page then completes the file.


@require_POST
@look_up(get_writing_membership)
def dataset_uploads(request: Request, team: Team) -> JsonResponse:
    dataset = _requested_dataset(request, team)
    form = TransferForm(request.POST)
    if not form.is_valid():
        return refuse_form(form)
    purge_uploads()
    try:
        upload = begin_transfer(
            team=team, user=request.user, dataset=dataset, **form.cleaned_data
        )
    except ValueError as error:
        return refuse(str(error), status=422, code=code_of(error))
    return _upload_response(upload)


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def dataset_upload_parts(request: Request, team: Team, upload_id: int) -> JsonResponse:
    if request.method == "GET":
        return _upload_response(get_upload(team, upload_id))

    def append(offset: int, size: int) -> Upload:
        return append_part(
            team=team,
            user=request.user,
            upload_id=upload_id,
            offset=offset,
            part=request,
            size=size,
        )

    return receive_part(
        request, append, lambda: get_upload(team, upload_id), _upload_response
    )


def receive_part(
    request: Request,
    append: Callable[[int, int], Any],
    find: Callable[[], Any],
    respond: Callable[..., JsonResponse],
) -> JsonResponse:
    """Append the body with `append(offset, size)`; a 409 has the right offset."""
    try:
        offset = _number(request.GET.get("offset", ""))
        size = _number(request.headers.get("content-length", ""))
        return respond(append(offset, size))
    except OffsetMismatch:
        return respond(find(), status=409)
    except ValueError as error:
        return refuse(str(error), status=422, code=code_of(error))
    except OSError as error:
        message = f"Cohort could not store the part: {error.strerror or error}."
        if error.errno == errno.ENOSPC:
            message = (
                f"The disk of {settings.COHORT_DATA} is full. Free some space, then "
                "continue."
            )
        return refuse(message, status=507, code="disk_full")


def _upload_response(upload: Upload, status: int = 200) -> JsonResponse:
    """Return the progress of the upload; with 409 after a wrong offset."""
    fields = {
        "id": upload.pk,
        "filename": upload.filename,
        "size": upload.num_bytes,
        "received": upload.num_received,
        "is_whole": upload.is_whole,
    }
    return JsonResponse(fields, status=status)


def refuse(message: str, status: int, code: str = "") -> JsonResponse:
    return JsonResponse({"error": message, "code": code or "invalid"}, status=status)


def refuse_form(form: forms.Form) -> JsonResponse:
    errors = [
        f"{name}: {message}"
        for name, messages in form.errors.items()
        for message in messages
    ]
    return refuse(" ".join(errors), status=422)


def _number(text: str) -> int:
    number = read_id(text)
    if number is None:
        raise UserError(
            "datasets.invalid_part",
            "offset and Content-Length must be whole numbers of bytes; got "
            f"{text[:40]!r}.",
        )
    return number


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def dataset_import(request: Request, team: Team, job_id: int) -> HttpResponse:
    if request.method == "POST":
        job = get_import_job(team, job_id)
        if request.POST.get("stop") and not request_stop(job, request.user):
            messages.info(request, f"{job} has already ended.")
        if request.POST.get("again") and not job.is_open:
            job = retry_job(job, request.user)
            notify_workers("default")
        return redirect("dataset_import", team.slug, job.pk)
    # Also here, as the lost worker may be the one that reaps jobs.
    reap_of(get_import_job(team, job_id))
    job = get_import_job(team, job_id)
    address = _outcome_address(job)
    if request.htmx and address:
        _add_success_message(request, job)
        return HttpResponseClientRedirect(address)
    context = {
        "team": team,
        "job": job,
        "outcome_address": address,
        "upload": find_upload(job),
        "outcome": _outcome_text(job) if job.version else "The version was deleted.",
        "waiting": waiting_reason(job.job) if job.job else "",
    }
    return render(request, "datasets/import.html", context)


def follow(request: Request, job: ImportJob) -> HttpResponse:
    """Redirect to the outcome of the import, or to its page while it runs."""
    if address := _outcome_address(job):
        _add_success_message(request, job)
        return redirect(address)
    return redirect("dataset_import", job.team.slug, job.pk)


def follow_address(job: ImportJob) -> str:
    """Return the URL of `follow`, without a message."""
    own = resolve_url("dataset_import", job.team.slug, job.pk)
    return _outcome_address(job) or own


def _outcome_address(job: ImportJob) -> str | None:
    """Return the URL of the outcome; None if the page of the import shows it."""
    if job.is_fetch:
        return _fetched_address(job) if job.state == JobState.DONE else None
    if job.state == JobState.DONE and job.version:
        return resolve_url("dataset", job.team.slug, job.version.dataset_id)
    exists = find_upload(job) is not None
    if job.is_refused and exists:
        return resolve_url("dataset_map", job.team.slug, job.upload_id)
    return None


def _fetched_address(job: ImportJob) -> str | None:
    """Return the URL of the mapping page, or of the choice of splits and files."""
    upload = find_upload(job)
    if upload is None:
        return None
    page = "dataset_map" if upload.is_whole else "dataset_choice"
    exists = upload.is_whole or choices_of(upload)
    return resolve_url(page, job.team.slug, upload.pk) if exists else None


def _add_success_message(request: Request, job: ImportJob) -> None:
    if job.state == JobState.DONE and job.version:
        messages.success(request, _outcome_text(job))


def _outcome_text(job: ImportJob) -> str:
    version = job.version
    assert version
    if not job.made_version:
        return (
            f"No new version: version {version.number} already has these "
            f"{version.num_rows:,} rows."
        )
    if job.is_generated:
        return f"Generated {version.num_rows:,} rows."
    if not job.upload_id:
        return f"Saved {version.num_rows:,} rows as version {version.number}."
    skipped = f", skipped {version.num_left_out:,}" if version.num_left_out else ""
    return f"Imported {version.num_rows:,} rows as version {version.number}{skipped}."
