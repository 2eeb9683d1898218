"""From an uploaded or fetched file to an import: which split, which columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.datasets.fetching.choices import Choice
from dashboard.datasets.fetching.fetches import choices_of, choose
from dashboard.datasets.import_forms import MappingForm
from dashboard.datasets.imports import (
    Peek,
    begin_work,
    delete_upload,
    map_records,
    start_job,
    try_peek,
)
from dashboard.datasets.limits import PREVIEW_ROWS
from dashboard.datasets.models import ImportJob, Upload
from dashboard.datasets.parsing.records import Refusal, Refusals
from dashboard.datasets.queries import get_upload, last_job, live_or_done_job
from dashboard.datasets.row import Row
from dashboard.datasets.suggestions import suggest_fixes, suggest_rule, warn
from dashboard.datasets.token_preview import (
    NUM_ROWS,
    Preview,
    list_models,
    preview_row,
    read_row,
)
from dashboard.datasets.version_forms import PromptForm
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import notify_workers
from dashboard.pages.dataset_uploads import follow, follow_address
from dashboard.pages.requests import Request, read_number
from dashboard.project.errors import or_404

PREVIEWED = 5  # rows shown as they would be imported
FIXED_PROBLEMS = 10  # trying changes for a hundred takes long
MANY = 0.2  # of the rows: for fewer, another mapping harms more rows than it lets in


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for, upload=get_upload)
def dataset_choice(request: Request, team: Team, upload: Upload) -> HttpResponse:
    """Choose the split or file of a Hub dataset."""
    is_post = request.method == "POST"
    choices = choices_of(upload)
    if not choices:
        return redirect("dataset_map", team.slug, upload.pk)
    if not is_post:
        return _render_choices(request, upload, choices)
    name = request.POST.get("choice", "")
    picked = next((choice for choice in choices if choice.name == name), None)
    if picked is None:
        problem = "Choose a split or a file."
        return _render_choices(request, upload, choices, problem, status=422)
    job = choose(upload, picked, request.user)
    notify_workers("default")
    return redirect("dataset_import", team.slug, job.pk)


def _render_choices(
    request: Request,
    upload: Upload,
    choices: list[Choice],
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    groups = [
        ("Splits", [choice for choice in choices if choice.is_split]),
        ("Files", [choice for choice in choices if not choice.is_split]),
    ]  # each of one commit
    context = {
        "team": upload.team,
        "upload": upload,
        "source": upload.source,
        "groups": [(title, members) for title, members in groups if members],
        "num_shown": len(choices),
        "problem": problem,
    }
    return render(request, "datasets/choice.html", context, status=status)


@require_POST
@look_up(get_writing_membership, upload=get_upload)
def dataset_map_prompt(request: Request, upload: Upload) -> HttpResponse:
    """Show the prompt preview of a row with these columns; stores nothing."""
    seen = try_peek(upload) if upload.is_whole else None
    if seen is None:
        preview = Preview(problem="The file is missing. Upload it again.")
    else:
        preview = _prompt_preview(request, upload, seen)
    context = {"preview": preview, **preview_context(upload)}
    return render(request, "datasets/prompt_preview.html", context)


def preview_context(upload: Upload) -> dict[str, Any]:
    address = reverse("dataset_map_prompt", args=[upload.team.slug, upload.pk])
    return {"preview_url": address, "preview_form": "#mapping, #prompt-form"}


def _prompt_preview(request: Request, upload: Upload, seen: Peek) -> Preview:
    form = PromptForm(request.POST)
    if not form.is_valid():
        return Preview(problem=form.first_problem)
    columns = MappingForm(upload, seen, request.POST)
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


@require_http_methods(["GET", "POST"])
@look_up(get_membership_for)
def dataset_map(
    request: Request, membership: Membership, team: Team, upload_id: int
) -> HttpResponse:
    if request.method == "POST":
        return _post(request, team, upload_id)
    upload = get_upload(team, upload_id)
    job = last_job(upload)
    if job and job.is_open:
        return redirect("dataset_import", team.slug, job.pk)
    if not upload.is_whole:
        return redirect(_arrival_address(upload))
    seen = try_peek(upload)
    if seen is None:
        return _file_missing(request, upload)
    # The URL may contain only settings of the preview.
    fields = request.GET if "prompt" in request.GET else None
    if job and not job.is_fetch and fields is None:
        data = {**job.mapping, "answer": job.mapping["answer"] or "", "name": job.name}
        form = MappingForm(upload, seen, data)
        form.is_valid()
        refused = _refusals(job) if job.is_refused else None
        return _render(request, upload, seen, form, refused)
    form = MappingForm(upload, seen, fields)
    form.is_valid()
    if request.htmx:
        context = {
            **_preview(upload, seen, form),
            "is_part": True,
            "can_write": membership.can_write,
        }
        return render(request, "datasets/mapped_rows.html", context)
    return _render(request, upload, seen, form)


def _post(request: Request, team: Team, upload_id: int) -> HttpResponse:
    # A second click may come as the first one's import ends and deletes the upload. So
    # the upload is queried first: if it is missing, its job is done.
    stored = team.uploads.select_related("dataset").filter(pk=upload_id).first()
    if job := live_or_done_job(team, upload_id):
        return redirect("dataset_import", team.slug, job.pk)
    upload = or_404(stored, "No such upload.")
    if request.POST.get("discard"):
        delete_upload(upload)
        messages.info(request, f"Discarded {upload.filename}.")
        if upload.is_whole:
            return redirect("datasets", upload.team.slug)
        return redirect(_upload_address(upload))
    if not upload.is_whole:
        return redirect(_arrival_address(upload))
    seen = try_peek(upload)
    form = MappingForm(upload, seen, request.POST) if seen else None
    is_valid = form is not None and form.is_valid()
    # The import of the first click may have deleted the file and taken the name.
    if not is_valid and (job := live_or_done_job(team, upload_id)):
        return redirect("dataset_import", team.slug, job.pk)
    if seen is None or form is None:
        return _file_missing(request, upload)
    if request.POST.get("retry"):
        delete_upload(upload)
        return redirect(_upload_address(upload))
    if not is_valid:
        return _render(request, upload, seen, form, status=422)
    return _import(request, upload, seen, form)


def _import(
    request: Request, upload: Upload, seen: Peek, form: MappingForm
) -> HttpResponse:
    job, is_new = start_job(
        upload=upload,
        mapping=form.mapping,
        name=form.cleaned_data.get("name", ""),
        user=request.user,
        # The number of rows with errors that the user agreed to skip.
        leave_out=read_number(request.POST.get("leave_out")) or 0,
    )
    if is_new:
        begin_work(job, at_once=seen.is_small)
    if job.is_refused:
        return _render(request, upload, seen, form, _refusals(job), status=422)
    if job.state == JobState.FAILED:
        form.add_error(None, job.error)
        return _render(request, upload, seen, form, status=422)
    return follow(request, job)


def _refusals(job: ImportJob) -> Refusals:
    return Refusals.from_json(job.refusals)


def _arrival_address(upload: Upload) -> str:
    """Return the page of the download, or the upload page."""
    job = last_job(upload) if upload.is_linked else None
    return follow_address(job) if job else _upload_address(upload)


def _upload_address(upload: Upload) -> str:
    """Return the upload page for this file."""
    address = reverse("dataset_upload", args=[upload.team.slug])
    of_dataset = f"?dataset={upload.dataset_id}" if upload.dataset_id else ""
    return f"{address}{of_dataset}"


def _file_missing(request: Request, upload: Upload) -> HttpResponse:
    messages.error(request, f"The file {upload.filename} is missing. Upload it again.")
    delete_upload(upload)
    return redirect("dataset_upload", upload.team.slug)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The outcome of an import with these columns, as far as it is known."""

    refusals: Refusals
    is_whole: bool  # every row is counted

    @property
    def is_possible(self) -> bool:
        return self.refusals.num_good > 0 and not self.refusals.ends_file

    @property
    def leave_out(self) -> int | None:
        """The rows to skip; None: the import itself finds out."""
        is_known = self.is_whole and self.is_possible
        return self.refusals.count if is_known else None


def _preview(
    upload: Upload, seen: Peek, form: MappingForm, found: Refusals | None = None
) -> dict[str, object]:
    """`found`: the errors of the whole file, where an import has read it."""
    mapped = map_records(upload, seen.sample, form.mapping)
    rows = [row for row in mapped if isinstance(row, Row)]
    records = seen.records[:PREVIEWED]
    # Rows of a JSON list may all stand in one line.
    places = [record.row or record.line for record in records]
    refusals = found or _refusals_of(seen, mapped)
    is_whole = seen.is_small and len(seen.sample) == seen.refusals.num_good
    return {
        "form": form,
        "upload": upload,
        "refusals": refusals,
        "outlook": Outlook(refusals=refusals, is_whole=is_whole or found is not None),
        "problems": _problems(upload, seen, form, mapped, refusals),
        "mapped": list(zip(places, mapped, strict=False)),
        "place": upload.place,
        "counted": "Row" if records and records[0].row else upload.place,
        "warnings": warn(rows),
        "rule": suggest_rule(rows[:PREVIEW_ROWS]),
        "is_whole": seen.is_small,
    }


def _refusals_of(seen: Peek, mapped: list[Row | Refusal]) -> Refusals:
    """Count the file's first rows that were not read, and those not mapped."""
    refusals = Refusals.from_json(seen.refusals.as_json())
    refusals.num_good -= len(seen.sample)
    for row in mapped:
        if isinstance(row, Refusal):
            refusals.add(row)
        else:
            refusals.num_good += 1
    return refusals


def _problems(
    upload: Upload,
    seen: Peek,
    form: MappingForm,
    mapped: list[Row | Refusal],
    refusals: Refusals,
) -> list[dict[str, object]]:
    """Rows with one error, and changes that let them in: a label and an address."""
    pairs = list(zip(seen.sample, mapped, strict=True))
    good = [record for record, row in pairs if isinstance(row, Row)]
    return [
        {
            "group": group,
            "fixes": [
                (fix.label, form.query(fix.mapping))
                for fix in suggest_fixes(
                    group.first[0],
                    [
                        record
                        for record, row in pairs
                        if isinstance(row, Refusal)
                        and (row.problem, row.column) == (group.problem, group.column)
                    ],
                    good,
                    form.mapping,
                    is_text=not upload.has_types,
                )
            ]
            if number < FIXED_PROBLEMS and group.count >= MANY * refusals.num_rows
            else [],
        }
        for number, group in enumerate(refusals.groups)
    ]


def _render(
    request: Request,
    upload: Upload,
    seen: Peek,
    form: MappingForm,
    refusals: Refusals | None = None,
    status: int = 200,
) -> HttpResponse:
    models = list_models(upload.team)
    context = {
        "team": upload.team,
        "upload": upload,
        "seen": seen,
        "was_refused": refusals is not None,
        "prompt_form": PromptForm.prefilled(request.GET, model=next(iter(models), "")),
        "models": models,
        "can_write": get_membership(request, upload.team.slug).can_write,
        **preview_context(upload),
        **_preview(upload, seen, form, refusals),
    }
    return render(request, "datasets/mapping.html", context, status=status)
