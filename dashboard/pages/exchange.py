"""Runs exported as files, and runs of other tools imported from files."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.db.models import Count, Sum
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from django_htmx.http import HttpResponseClientRedirect

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.completions.annotations import has_annotations
from dashboard.completions.search.indexing import count_completions
from dashboard.datasets.limits import MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import cancel, reap_of, waiting_reason
from dashboard.pages.dataset_uploads import receive_part, refuse, refuse_form
from dashboard.pages.requests import Request, report_refusal
from dashboard.project.errors import UserError, or_404
from dashboard.runs.models import Evaluation, Run, Step
from dashboard.runs.queries import get_run
from dashboard.transfers import jobs
from dashboard.transfers.export_runs import (
    completions_table,
    groups_of,
    metric_names,
    metrics_table,
    send_file,
)
from dashboard.transfers.export_tables import Span, SpanForm, Table, jsonl_bytes
from dashboard.transfers.import_files import (
    MAX_FILES,
    append_part,
    begin_file,
    begin_import,
    discard,
    store_file,
)
from dashboard.transfers.import_preview import MakeForm
from dashboard.transfers.models import ImportFile, RunImport
from dashboard.web.downloads import mark_for_spreadsheets
from dashboard.web.middleware import MAX_BODY_BYTES

FORM_BYTES = MAX_BODY_BYTES - 2**20  # of files, leaving room for the rest of the form
MEASURED_ROWS = 200  # of which a file's size is estimated


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for)
def run_imports(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """Receive files; without scripts they come with the form."""
    problem = ""
    if request.method == "POST":
        try:
            return redirect("run_import", team.slug, _begin(request, team).pk)
        except ValueError as error:
            problem = str(error)
    counted = RunImport.objects.filter(team=team, run=None).annotate(
        num_files=Count("files"), num_bytes=Sum("files__num_bytes")
    )
    context = {
        "team": team,
        "can_write": membership.can_write,
        "problem": problem,
        "imports": counted.select_related("created_by", "job").order_by("-pk"),
        "limits": {
            "files": MAX_FILES,
            "bytes": MAX_UPLOAD_BYTES,
            "form_bytes": FORM_BYTES,
            "part_bytes": PART_BYTES,
        },
    }
    return render(
        request, "transfers/imports.html", context, status=422 if problem else 200
    )


def _begin(request: Request, team: Team) -> RunImport:
    """Start an import with the files of the form; a script sends its files later."""
    sent = request.FILES.getlist("files")
    if not sent and "begin" not in request.POST:
        raise UserError("run_imports.no_files", "Choose at least one file.")
    run_import = begin_import(team, request.user)
    try:
        for file in sent:
            assert isinstance(file, UploadedFile)
            store_file(run_import, file)
    except ValueError:
        discard(run_import)
        raise
    except OSError as error:
        discard(run_import)
        raise ValueError(str(error)) from None
    if sent:
        jobs.start(run_import, RunImport.READ)
    return run_import


def get_import(team: Team, import_id: int) -> RunImport:
    imports = RunImport.objects.select_related("team", "created_by", "run", "job")
    return or_404(imports.filter(team=team, pk=import_id).first(), "Import not found.")


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for)
def run_import(request: Request, team: Team, import_id: int) -> HttpResponse:
    """Show the contents of the files; POST reads them, creates the run or discards
    them.
    """
    if request.method == "POST":
        import_ = get_import(team, import_id)
        if "discard" in request.POST:
            if import_.is_open:
                messages.error(request, "The import is running. Stop it first.")
                return redirect("run_import", team.slug, import_.pk)
            discard(import_)
            return redirect("run_imports", team.slug)
        if "stop" in request.POST and not cancel(import_.job):
            messages.info(request, "The import had already ended.")
        if "read" in request.POST:
            with report_refusal(request):
                jobs.start_reading(import_)
        if "make" in request.POST and import_.findings:
            form = MakeForm(import_, request.POST)
            if not form.is_valid():
                return _show(request, import_, form, status=422)
            jobs.start(import_, RunImport.MAKE, choices=form.choices)
        return redirect("run_import", team.slug, import_.pk)
    # Also here, because the lost worker may be the one that reaps jobs.
    reap_of(get_import(team, import_id))
    import_ = get_import(team, import_id)
    if import_.run_id and import_.state == JobState.DONE:
        address = resolve_url("run", import_.team.slug, import_.run_id)
        is_part = bool(getattr(request, "htmx", False))
        return HttpResponseClientRedirect(address) if is_part else redirect(address)
    return _show(request, import_)


def _show(
    request: Request,
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
    return render(request, "transfers/import.html", context, status=status)


# The formats of each kind of file.
FORMATS = {
    "metrics": {
        "csv": "CSV",
        "jsonl": "JSONL",
        "parquet": "Parquet",
        "tensorboard": "TensorBoard",
    },
    "completions": {"csv": "CSV", "jsonl": "JSONL", "parquet": "Parquet"},
    "settings": {"toml": "TOML", "json": "JSON"},
    "annotations": {"jsonl": "JSONL"},
    "preferences": {"jsonl": "JSONL"},
}
TITLES = {
    "metrics": "Metrics",
    "completions": "Completions",
    "settings": "Settings",
    "annotations": "Annotations",
    "preferences": "Preference pairs",
}


@require_safe
@look_up(get_membership, run=get_run)
def run_export(request: Request, team: Team, run: Run) -> HttpResponse:
    """?what= and ?format= choose a file; ?download= leads to it."""
    form = SpanForm.read(request.GET)
    names = ["metrics", "completions"]
    names += [] if run.is_imported else ["settings"]
    offered = names + (["annotations", "preferences"] if has_annotations(run) else [])
    what = request.GET.get("what", "")
    what = what if what in offered else "metrics"
    chosen = request.GET.get("format", "")
    chosen = chosen if chosen in FORMATS[what] else next(iter(FORMATS[what]))
    if "download" in request.GET and form.is_valid():
        return redirect(_address(run, what, chosen) + form.query)
    span = form.span if form.is_valid() else Span()
    context = {
        "team": team,
        "run": run,
        "tab": "export",
        "form": form,
        "offered": {name: TITLES[name] for name in offered},
        "what": what,
        "formats": FORMATS[what],
        "format": chosen,
        "num_metrics": len(metric_names(run)),
    }
    if what == "metrics":
        context["offer"] = _offer(
            metrics_table(run, span),
            num_rows=_num_points(run, span),
            num_all=_num_points(run, Span()),
        )
    elif what == "completions":
        taken, in_all = (
            count_completions(run, first=span_.first, last=span_.last)
            for span_ in (span, Span())
        )
        context["offer"] = _offer(
            completions_table(run, span), num_rows=taken, num_all=in_all
        )
        context["num_groups"] = groups_of(run, span).count()
    return render(request, "transfers/export.html", context)


def _address(run: Run, what: str, chosen: str) -> str:
    at = [run.team.slug, run.pk]
    if what == "settings":
        return resolve_url("run_config_file", *at, chosen)
    if what in ("annotations", "preferences"):
        return resolve_url("run_annotations", *at, what)
    name = "tensorboard.zip" if chosen == "tensorboard" else f"{what}.{chosen}"
    return resolve_url("run_export_file", *at, name)


def _num_points(run: Run, span: Span) -> int:
    """Steps with a value; an evaluation may come before the first step. One query."""
    at = {"run": run, "superseded_by": None, "step__range": (span.first, span.last)}
    steps = Step.objects.filter(**at).values("step")
    return steps.union(Evaluation.objects.filter(**at).values("step")).count()


def _offer(table: Table, *, num_rows: int, num_all: int) -> dict[str, int]:
    """The contents of a table's files, and of the whole run's.

    `num_bytes` is of the JSON lines; that of more than a few rows is an estimate.
    """
    num_bytes, num_measured = jsonl_bytes(table, MEASURED_ROWS)
    if num_measured:
        num_bytes = num_bytes * num_rows // num_measured
    return {"num_rows": num_rows, "num_all": num_all, "num_bytes": num_bytes}


@require_safe
@look_up(get_membership, run=lambda team, run_id: get_run(team, int(run_id)))
def run_export_file(request: Request, run: Run, file: str) -> HttpResponseBase:
    """Sent while it is read, so that nothing is held but a part of it."""
    form = SpanForm.read(request.GET)
    if not form.is_valid():
        return HttpResponse(
            " ".join(str(error) for errors in form.errors.values() for error in errors),
            status=422,
            content_type="text/plain; charset=utf-8",
        )
    return mark_for_spreadsheets(send_file(run, form.span, file))


# An import's files in parts, for scripts: the answers are JSON.


class FileForm(forms.Form):
    filename = forms.CharField(max_length=300)
    num_bytes = forms.IntegerField(min_value=0)
    fingerprint = forms.CharField(max_length=64, required=False)


@require_POST
@look_up(get_writing_membership)
def run_import_files(request: Request, team: Team, import_id: int) -> JsonResponse:
    import_ = get_import(team, import_id)
    form = FileForm(request.POST)
    if not form.is_valid():
        return refuse_form(form)
    try:
        return _file_json(begin_file(import_, **form.cleaned_data))
    except ValueError as error:
        return refuse(str(error), status=422)


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def run_import_parts(
    request: Request, team: Team, import_id: int, file_id: int
) -> JsonResponse:
    is_post = request.method == "POST"
    files = get_import(team, import_id).files
    file = or_404(files.filter(pk=file_id).first(), "File not found.")
    if not is_post:
        return _file_json(file)

    def append(offset: int, size: int) -> ImportFile:
        append_part(file, offset=offset, part=request, size=size)
        return file

    return receive_part(request, append, lambda: file, _file_json)


def _file_json(file: ImportFile, status: int = 200) -> JsonResponse:
    """Return the number of bytes received; 409 if the part had another offset."""
    fields = {"id": file.pk, "size": file.num_bytes, "received": file.num_received}
    return JsonResponse(fields, status=status)
