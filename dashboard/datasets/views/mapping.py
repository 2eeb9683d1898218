from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_membership, get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.import_forms import MappingForm
from dashboard.datasets.imports import (
    Peek,
    begin_work,
    forget_upload,
    map_records,
    start_job,
    try_peek,
)
from dashboard.datasets.models import ImportJob, Upload
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.queries import get_upload, last_job, live_or_done_job
from dashboard.datasets.token_preview import list_models
from dashboard.datasets.version_forms import PromptForm
from dashboard.datasets.views.imports import follow, follow_address
from dashboard.datasets.views.mapping_prompt import preview_place
from dashboard.jobs.models import JobState

PREVIEWED = 5  # rows shown as they would be imported


@require_http_methods(["GET", "POST"])
def dataset_map(request: HttpRequest, team: str, upload_id: int) -> HttpResponse:
    if request.method == "POST":
        return _post(request, get_writable_team(request, team), upload_id)
    team_ = get_team(request, team)
    upload = get_upload(team_, upload_id)
    job = last_job(upload)
    if job and job.is_open:
        return redirect("dataset_import", team_.slug, job.pk)
    if not upload.is_whole:
        return redirect(_arrival_address(upload))
    seen = try_peek(upload)
    if seen is None:
        return _gone(request, upload)
    # An address may hold settings of the preview alone.
    given = request.GET if "prompt" in request.GET else None
    if job and not job.is_fetch and given is None:
        form = MappingForm(upload, seen.names, _chosen(job))
        form.is_valid()
        refused = _refusals(job) if job.is_refused else None
        return _render(request, upload, seen, form, refused)
    form = MappingForm(upload, seen.names, given)
    form.is_valid()
    if request.htmx:  # type: ignore[attr-defined]  # added by django-htmx
        context = _preview(upload, seen, form)
        return render(request, "datasets/mapped_rows.html", context)
    return _render(request, upload, seen, form)


def _post(request: HttpRequest, team: Team, upload_id: int) -> HttpResponse:
    # A second click may come while the first one's import ends, which takes the upload
    # away. So the upload is asked for first: where it is gone, the job is done by then.
    upload = team.uploads.select_related("dataset").filter(pk=upload_id).first()
    if job := live_or_done_job(team, upload_id):
        return redirect("dataset_import", team.slug, job.pk)
    if upload is None:
        raise Http404("No such upload.")
    if request.POST.get("discard"):
        return _discard(request, upload)
    if not upload.is_whole:
        return redirect(_arrival_address(upload))
    seen = try_peek(upload)
    form = MappingForm(upload, seen.names, request.POST) if seen else None
    is_valid = form is not None and form.is_valid()
    # Its file may have gone, and its name been taken, by the first click's import.
    if not is_valid and (job := live_or_done_job(team, upload_id)):
        return redirect("dataset_import", team.slug, job.pk)
    if seen is None or form is None:
        return _gone(request, upload)
    if request.POST.get("retry"):
        return _retry(upload)
    if not is_valid:
        return _render(request, upload, seen, form, status=422)
    return _import(request, upload, seen, form)


def _import(
    request: HttpRequest, upload: Upload, seen: Peek, form: MappingForm
) -> HttpResponse:
    assert isinstance(request.user, User)
    job, is_new = start_job(
        upload=upload,
        mapping=form.mapping,
        name=form.cleaned_data.get("name", ""),
        user=request.user,
        leave_out=_leave_out(request),
    )
    if is_new:
        begin_work(job, at_once=seen.is_small)
    if job.is_refused:
        return _render(request, upload, seen, form, _refusals(job), status=422)
    if job.state == JobState.FAILED:
        form.add_error(None, job.error)
        return _render(request, upload, seen, form, status=422)
    return follow(request, job)


def _chosen(job: ImportJob) -> dict[str, Any]:
    """What was chosen for this import, as its form sent it."""
    mapping = job.mapping
    return {**mapping, "answer": mapping["answer"] or "", "name": job.name}


def _refusals(job: ImportJob) -> Refusals:
    return Refusals.from_json(job.refusals)


def _leave_out(request: HttpRequest) -> int:
    """How many refused rows the user has seen and agreed to do without."""
    count = request.POST.get("leave_out", "")
    return int(count) if count.isdecimal() and len(count) < 10 else 0


def _discard(request: HttpRequest, upload: Upload) -> HttpResponse:
    forget_upload(upload)
    messages.info(request, f"{upload.filename} was discarded.")
    if upload.is_whole:
        return redirect("datasets", upload.team.slug)
    return redirect(_upload_address(upload))


def _retry(upload: Upload) -> HttpResponse:
    forget_upload(upload)
    return redirect(_upload_address(upload))


def _arrival_address(upload: Upload) -> str:
    """Of the page that sees to it that the file gets here."""
    job = last_job(upload) if upload.is_linked else None
    return follow_address(job) if job else _upload_address(upload)


def _upload_address(upload: Upload) -> str:
    """The page that such a file is sent from."""
    address = reverse("dataset_upload", args=[upload.team.slug])
    of_dataset = f"?dataset={upload.dataset_id}" if upload.dataset_id else ""
    return f"{address}{of_dataset}"


def _gone(request: HttpRequest, upload: Upload) -> HttpResponse:
    messages.error(
        request, f"The file {upload.filename} is no longer here. Upload it again."
    )
    forget_upload(upload)
    return redirect("dataset_upload", upload.team.slug)


def _preview(upload: Upload, seen: Peek, form: MappingForm) -> dict[str, object]:
    records = seen.records[:PREVIEWED]
    mapped = map_records(upload, records, form.mapping)
    lines = [record.line for record in records]
    return {
        "mapping": form.mapping,
        "mapped": list(zip(lines, mapped, strict=True)),
        "place": upload.place,
    }


def _render(
    request: HttpRequest,
    upload: Upload,
    seen: Peek,
    form: MappingForm,
    refusals: Refusals | None = None,
    status: int = 200,
) -> HttpResponse:
    assert isinstance(request.user, User)
    models = list_models(upload.team)
    context = {
        "team": upload.team,
        "upload": upload,
        "seen": seen,
        "form": form,
        "refusals": refusals or seen.refusals,
        "was_refused": refusals is not None,
        "prompt_form": PromptForm.prefilled(request.GET, model=next(iter(models), "")),
        "models": models,
        "can_write": get_membership(request.user, upload.team.slug).can_write,
        **preview_place(upload),
        **_preview(upload, seen, form),
    }
    return render(request, "datasets/mapping.html", context, status=status)
