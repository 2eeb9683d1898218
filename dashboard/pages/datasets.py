"""Datasets and their trash: the list, a version's rows, downloads."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.datasets.analysis.results import remark_on
from dashboard.datasets.import_forms import RestoreForm, UploadForm, form_error
from dashboard.datasets.models import Dataset, place_of
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.queries import (
    find_open_import,
    find_parents,
    find_trashed,
    get_any_dataset,
    get_dataset,
    list_datasets,
    list_trashed,
    list_uses,
    list_waiting,
    versions_with_use,
)
from dashboard.datasets.row_exports import WRITERS, RowsMissing, check_rows, send_rows
from dashboard.datasets.row_filters import RowFilterForm
from dashboard.datasets.row_pages import read_page, read_target
from dashboard.datasets.suggestions import suggest_rule
from dashboard.datasets.token_preview import list_models
from dashboard.datasets.trash import (
    RETENTION,
    delete_dataset,
    restore_dataset,
    trash_dataset,
)
from dashboard.pages.requests import Request, choose_version, redirect_with
from dashboard.project.errors import or_404
from dashboard.web.downloads import mark_for_spreadsheets

DATASETS_PER_PAGE = 30
FEW = 8  # datasets, so that a file can be dropped below their list
LOOKED_AT = 10  # rows that suggest a reward rule


@require_GET
@look_up(get_membership)
def datasets_trash(request: Request, team: Team) -> HttpResponse:
    context = {
        "team": team,
        "datasets": list_trashed(team),
        "retention_days": RETENTION.days,
    }
    return render(request, "datasets/trash.html", context)


@require_POST
@look_up(get_writing_membership)
def dataset_trash(request: Request, team: Team, dataset_id: int) -> HttpResponse:
    """Move it to the trash; `restore` or `delete` one that is there."""
    if "restore" not in request.POST and "delete" not in request.POST:
        dataset = find_trashed(team, dataset_id) or get_dataset(team, dataset_id)
        trash_dataset(dataset, request.user)
        return redirect_with(
            request, f"Moved {dataset} to the trash.", "datasets", team.slug
        )
    trashed = or_404(find_trashed(team, dataset_id), "The trash has no such dataset.")
    if "delete" in request.POST:
        try:
            delete_dataset(trashed, request.user)
        except ValueError as error:
            messages.error(request, str(error))
            return redirect("dataset", team.slug, trashed.pk)
        return redirect_with(
            request, f"Deleted {trashed} permanently.", "datasets_trash", team.slug
        )
    return _restore(request, team, trashed)


def _restore(request: Request, team: Team, dataset: Dataset) -> HttpResponse:
    form = RestoreForm(request.POST)
    if form.is_valid():
        name = form.cleaned_data["name"]
        try:
            restore_dataset(dataset, name=name, user=request.user)
        except ValueError as error:
            form.add_error("name", form_error(error))
        else:
            return redirect_with(
                request, f"Restored {name}.", "dataset", team.slug, dataset.pk
            )
    return show_trashed(request, team, dataset, form)


def show_trashed(
    request: Request, team: Team, dataset: Dataset, form: RestoreForm | None = None
) -> HttpResponse:
    assert dataset.trashed_at
    context = {
        "team": team,
        "dataset": dataset,
        "form": form or RestoreForm(initial={"name": dataset.name}),
        "purged_at": dataset.trashed_at + RETENTION,
        "retention_days": RETENTION.days,
        "can_write": get_membership(request, team.slug).can_write,
    }
    return render(
        request, "datasets/trashed.html", context, status=422 if form else 200
    )


@require_GET
@look_up(get_membership, dataset=get_any_dataset)
def dataset(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    if dataset.trashed_at and (trashed := find_trashed(team, dataset.pk)):
        return show_trashed(request, team, trashed)
    versions = versions_with_use(dataset)
    version = choose_version(versions, request.GET.get("version"))
    form = RowFilterForm.read(version, request.GET)
    target = read_target(request.GET, version.num_rows, is_view=form.is_active)
    context: dict[str, object] = {
        "team": team,
        "dataset": dataset,
        "tab": "rows",
        "versions": versions,
        "version": version,
        "can_write": membership.can_write,
    }
    if target.chosen is not None:
        models = list_models(team)
        context |= {
            "opened": version.rows.filter(position=target.chosen).first(),
            "models": models,
            "model": next(iter(models), ""),
            "preview_url": reverse(
                "dataset_prompt", args=[team.slug, version.dataset_id]
            ),
        }
    if request.htmx.target == "row-drawer":
        return render(request, "datasets/row_drawer.html", context)
    page = read_page(version, form, target)
    context |= {
        "form": form,
        "page": page,
        "importing": find_open_import(dataset),
        "rule": suggest_rule([row.as_row() for row in page.rows[:LOOKED_AT]]),
        "left_out": Refusals.from_json(
            {"groups": version.left_out, "count": version.num_left_out}
        ),
        "left_out_place": place_of(version.source.get("format")),
    }
    is_further = "on" in request.GET and "HX-Request" in request.headers
    is_used = vars(version)["num_uses"] > 0  # versions_with_use counts it
    if not (is_further or context["importing"] or is_used):
        context["remarks"] = remark_on(version)
    template = "rows_further" if is_further else "detail"
    return render(request, f"datasets/{template}.html", context)


@require_GET
@look_up(get_membership, dataset=get_dataset)
def dataset_versions(
    request: Request, membership: Membership, team: Team, dataset: Dataset
) -> HttpResponse:
    versions = versions_with_use(dataset)
    uses, parents = list_uses(dataset), find_parents(team, versions)
    context = {
        "team": team,
        "dataset": dataset,
        "tab": "versions",
        "versions": versions,
        "version": choose_version(versions, request.GET.get("version")),
        "lines": [
            (
                version,
                uses.get(version.pk, []),
                parents.get(version.source.get("parent_id")),
            )
            for version in versions
        ],
        "can_write": membership.can_write,
    }
    return render(request, "datasets/versions.html", context)


@require_GET
@look_up(get_membership, dataset=get_any_dataset)
def dataset_download(
    request: Request, team: Team, dataset: Dataset
) -> HttpResponseBase:
    """Send a version's rows; also from the trash, to keep a copy before deleting."""
    version = choose_version(versions_with_use(dataset), request.GET.get("version"))
    version.dataset = dataset  # avoids a query
    suffix = request.GET.get("format") or "jsonl"
    if suffix not in WRITERS:
        raise Http404("No such format.")
    try:
        check_rows(version)
    except RowsMissing as error:
        messages.error(request, str(error))
        return redirect("dataset", team.slug, dataset.pk)
    return mark_for_spreadsheets(send_rows(version, suffix))


@require_GET
@look_up(get_membership)
def datasets(request: Request, membership: Membership, team: Team) -> HttpResponse:
    text = request.GET.get("q", "").replace("\x00", "").strip()[:200]
    page = Paginator(list_datasets(team, text), DATASETS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    context = {
        "team": team,
        "page": page,
        "text": text,
        "form": UploadForm(),
        "waiting": [] if text or page.number > 1 else list_waiting(team),
        "num_trashed": team.datasets.filter(trashed_at__isnull=False).count(),
        "can_write": membership.can_write,
        "takes_file": membership.can_write and not text and page.paginator.count <= FEW,
    }
    return render(request, "datasets/list.html", context)
