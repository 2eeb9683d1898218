from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.db.models import Count, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_http_methods
from django_htmx.http import HttpResponseClientRedirect

from dashboard.accounts.access import get_membership_for, get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.limits import MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.exchange import jobs
from dashboard.exchange.import_files import MAX_FILES, begin_import, discard, store_file
from dashboard.exchange.import_preview import MakeForm
from dashboard.exchange.models import RunImport
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import cancel, reap_of, waiting_reason
from dashboard.project.middleware import MAX_BODY_BYTES

FORM_BYTES = MAX_BODY_BYTES - 2**20  # of files beside the rest of the form


@require_http_methods(["GET", "HEAD", "POST"])
def run_imports(request: HttpRequest, team: str) -> HttpResponse:
    """Where files are sent to; without scripts they come with the form."""
    problem = ""
    if request.method == "POST":
        team_ = get_writable_team(request, team)
        try:
            return redirect("run_import", team_.slug, _begin(request, team_).pk)
        except ValueError as error:
            problem = str(error)
    membership = get_membership_for(request, team)
    context = {
        "team": membership.team,
        "can_write": membership.can_write,
        "problem": problem,
        "imports": _list(membership.team),
        "limits": {
            "files": MAX_FILES,
            "bytes": MAX_UPLOAD_BYTES,
            "form_bytes": FORM_BYTES,
            "part_bytes": PART_BYTES,
        },
    }
    status = 422 if problem else 200
    return render(request, "exchange/imports.html", context, status=status)


def _list(team: Team) -> QuerySet[RunImport]:
    counted = RunImport.objects.filter(team=team, run=None).annotate(
        num_files=Count("files"), num_bytes=Sum("files__num_bytes")
    )
    return counted.select_related("created_by", "job").order_by("-pk")


def _begin(request: HttpRequest, team: Team) -> RunImport:
    """With the files that came along; none do where a script sends them."""
    assert isinstance(request.user, User)
    sent = request.FILES.getlist("files")
    if not sent and "begin" not in request.POST:
        raise ValueError("No file was chosen. Choose one, or several.")
    run_import = begin_import(team, request.user)
    try:
        for file in sent:
            assert isinstance(file, UploadedFile)
            store_file(run_import, file)
    except (ValueError, OSError) as error:
        discard(run_import)
        raise ValueError(str(error)) from None
    if sent:
        jobs.start(run_import, RunImport.READ)
    return run_import


def get_import(team: Team, import_id: int) -> RunImport:
    found = RunImport.objects.select_related("team", "created_by", "run", "job")
    try:
        return found.get(team=team, pk=import_id)
    except RunImport.DoesNotExist:
        raise Http404("No such import.") from None


@require_http_methods(["GET", "HEAD", "POST"])
def run_import(request: HttpRequest, team: str, import_id: int) -> HttpResponse:
    """What was understood of the files; a POST goes on with it, or ends it."""
    if request.method == "POST":
        return _change(request, get_writable_team(request, team), import_id)
    team_ = get_team(request, team)
    # Here as well, as the worker that ended may be the one that looks for these.
    reap_of(get_import(team_, import_id))
    found = get_import(team_, import_id)
    if found.run_id and found.state == JobState.DONE:
        address = resolve_url("run", found.team.slug, found.run_id)
        is_part = bool(getattr(request, "htmx", False))
        return HttpResponseClientRedirect(address) if is_part else redirect(address)
    return _show(request, found)


def _show(
    request: HttpRequest,
    run_import: RunImport,
    form: forms.Form | None = None,
    status: int = 200,
) -> HttpResponse:
    is_read = run_import.findings and not run_import.is_open
    can_make = is_read and (
        run_import.findings["num_samples"] or run_import.findings["num_points"]
    )
    context: dict[str, Any] = {
        "team": run_import.team,
        "run_import": run_import,
        "found": run_import.findings if is_read else None,
        "form": form or (MakeForm(run_import) if can_make else None),
        "files": run_import.files.order_by("pk")[:200],
        "num_files": run_import.files.count(),
        "waiting": waiting_reason(run_import.job) if run_import.job else "",
    }
    return render(request, "exchange/import.html", context, status=status)


def _change(request: HttpRequest, team: Team, import_id: int) -> HttpResponse:
    found = get_import(team, import_id)
    if "discard" in request.POST:
        return _discard(request, found)
    if "stop" in request.POST and not cancel(found.job):
        messages.info(request, "It had ended already.")
    if "read" in request.POST:
        _read(request, found)
    if "make" in request.POST and found.findings:
        form = MakeForm(found, request.POST)
        if not form.is_valid():
            return _show(request, found, form, status=422)
        jobs.start(found, RunImport.MAKE, choices=form.choices)
    return redirect("run_import", team.slug, found.pk)


def _discard(request: HttpRequest, run_import: RunImport) -> HttpResponse:
    if run_import.is_open:
        messages.error(request, "It is at work. Stop it first.")
        return redirect("run_import", run_import.team.slug, run_import.pk)
    discard(run_import)
    return redirect("run_imports", run_import.team.slug)


def _read(request: HttpRequest, run_import: RunImport) -> None:
    files = list(run_import.files.all())
    unfinished = [file.filename for file in files if not file.is_whole]
    if not files:
        messages.error(request, "No file is here. Send one, or several.")
    elif unfinished:
        messages.error(
            request,
            f"{len(unfinished):,} of {len(files):,} files are not whole, such as "
            f"{unfinished[0]}. Choose the same files again to resume the upload.",
        )
    else:
        jobs.start(run_import, RunImport.READ)
