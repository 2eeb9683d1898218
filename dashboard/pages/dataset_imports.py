"""An import of a dataset: its progress and outcome; stop and retry."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_http_methods
from django_htmx.http import HttpResponseClientRedirect

from dashboard.accounts.access import (
    get_membership_for,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.datasets.fetching.fetches import choices_of, host_of
from dashboard.datasets.imports import request_stop
from dashboard.datasets.jobs import retry_job
from dashboard.datasets.models import ImportJob
from dashboard.datasets.queries import find_upload, get_import_job
from dashboard.datasets.selections import query_of
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import notify_workers, reap_of, waiting_reason
from dashboard.pages.requests import Request


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
    upload = find_upload(job) if job.is_fetch else None
    context = {
        "team": team,
        "job": job,
        "outcome_address": address,
        "from_host": host_of(upload) if upload and upload.is_linked else "",
        "upload": find_upload(job),
        "outcome": _outcome_text(job) if job.version else "The version was deleted.",
        "task_query": query_of(job.source, job.name) if job.is_generated else "",
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
