from __future__ import annotations

from django.contrib import messages
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.forms import MappingForm
from dashboard.datasets.models import DatasetVersion, Upload
from dashboard.datasets.queries import get_upload
from dashboard.datasets.refusals import ImportRefused, Refusals
from dashboard.datasets.uploads import (
    Peek,
    forget_upload,
    import_upload,
    map_records,
    peek,
)

PREVIEWED = 5  # rows shown as they would be imported


@require_http_methods(["GET", "POST"])
def dataset_map(request: HttpRequest, team: str, upload_id: int) -> HttpResponse:
    if request.method == "POST":
        return _import(request, get_writable_team(request, team), upload_id)
    team_ = get_team(request, team)
    upload = get_upload(team_, upload_id)
    seen = _peek(upload)
    if seen is None:
        return _gone(request, upload)
    form = MappingForm(upload, seen.names, request.GET or None)
    form.is_valid()
    if request.htmx:  # type: ignore[attr-defined]  # added by django-htmx
        context = _preview(upload, seen, form)
        return render(request, "datasets/mapped_rows.html", context)
    return _render(request, upload, seen, form)


def _import(request: HttpRequest, team: Team, upload_id: int) -> HttpResponse:
    assert isinstance(request.user, User)
    upload = get_upload(team, upload_id)
    seen = _peek(upload)
    if seen is None:
        return _gone(request, upload)
    if request.POST.get("discard"):
        forget_upload(upload)
        messages.info(request, f"{upload.filename} was discarded.")
        return redirect("datasets", team.slug)
    if request.POST.get("retry"):
        return _retry(upload)
    form = MappingForm(upload, seen.names, request.POST)
    if not form.is_valid():
        return _render(request, upload, seen, form, status=422)
    newest = _newest_number(upload)
    try:
        version = import_upload(
            upload=upload,
            mapping=form.mapping,
            name=form.cleaned_data.get("name", ""),
            user=request.user,
            leave_out=_leave_out(request),
        )
    except ImportRefused as refused:
        return _render(request, upload, seen, form, refused.refusals, status=422)
    except ValueError as error:
        form.add_error(None, str(error))
        return _render(request, upload, seen, form, status=422)
    messages.success(request, _outcome(version, newest))
    return redirect("dataset", team.slug, version.dataset_id)


def _leave_out(request: HttpRequest) -> int:
    """How many refused rows the user has seen and agreed to do without."""
    count = request.POST.get("leave_out", "")
    return int(count) if count.isdecimal() and len(count) < 10 else 0


def _retry(upload: Upload) -> HttpResponse:
    forget_upload(upload)
    address = reverse("dataset_upload", args=[upload.team.slug])
    of_dataset = f"?dataset={upload.dataset_id}" if upload.dataset_id else ""
    return redirect(f"{address}{of_dataset}")


def _newest_number(upload: Upload) -> int:
    if upload.dataset is None:
        return 0
    newest = upload.dataset.versions.aggregate(newest=Max("number"))["newest"]
    return newest or 0


def _outcome(version: DatasetVersion, newest: int) -> str:
    if version.number == newest:
        return (
            f"These {version.num_rows:,} rows are those of version {version.number} "
            "already, so no new version was made."
        )
    left_out = f"; {version.num_left_out:,} were left out"
    return (
        f"Imported {version.num_rows:,} rows as version {version.number}"
        f"{left_out if version.num_left_out else ''}."
    )


def _peek(upload: Upload) -> Peek | None:
    """None when the file is gone, or when not one row of it can be read."""
    try:
        seen = peek(upload)
    except FileNotFoundError:
        return None
    return seen if seen.records else None


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
    context = {
        "team": upload.team,
        "upload": upload,
        "seen": seen,
        "form": form,
        "refusals": refusals or seen.refusals,
        "was_refused": refusals is not None,
        **_preview(upload, seen, form),
    }
    return render(request, "datasets/mapping.html", context, status=status)
