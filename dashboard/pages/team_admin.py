"""A team's administration: storage, quotas, retention, cluster, the audit log."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from django import forms
from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import (
    get_managing_membership,
    get_membership,
    look_up,
)
from dashboard.accounts.models import AuditEntry, Membership, Team
from dashboard.accounts.services import last_entry
from dashboard.datasets.row_exports import TYPES, joined
from dashboard.operations.audit_log import (
    WRITERS,
    FilterForm,
    show_objects,
)
from dashboard.operations.quotas import quota_usage
from dashboard.operations.retention import (
    RetentionForm,
    change_retention,
    preview_completions,
    preview_trash,
    retention_of,
)
from dashboard.pages.requests import Request, redirect_with
from dashboard.project.forms import select_field, set_choices
from dashboard.runs.queue.hosts import known_cluster
from dashboard.supervision.clusters import address_of, allowed_addresses, choose_address
from dashboard.supervision.models import TeamCluster
from dashboard.web.downloads import attach, mark_for_spreadsheets
from dashboard.web.edits import BASE, EditConflict, show_conflict, version_of

PER_PAGE = 50
PARTS = {
    "completions": ("Completions", "texts, also in the runs' logs"),
    "runs": ("Runs", "logs and checkpoints, including the trash"),
    "models": ("Published models", ""),
    "datasets": ("Datasets", "rows in all versions"),
    "outside": ("External runs", "data from their trainers"),
    "waiting": ("Pending files", "uploaded, not imported yet"),
}


def get_changing_membership(request: HttpRequest, slug: str) -> Membership:
    """Return the membership: for reading, or with POST for changing the team."""
    is_post = request.method == "POST"
    return (get_managing_membership if is_post else get_membership)(request, slug)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_changing_membership)
def team_storage(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """`?days=&completion_days=` shows what would be deleted; a POST keeps them."""
    if request.method == "POST":
        form = RetentionForm(request.POST)
        if not form.is_valid():
            return _show(request, membership, form, status=422)
        try:
            periods = _periods(form, request.POST)
            chosen = change_retention(
                team, request.user, periods, request.POST.get(BASE, "")
            )
        except EditConflict as conflict:
            return show_conflict(
                request,
                conflict,
                what=f"Storage of {team}",
                back=request.path,
                labels={name: str(field.label) for name, field in form.fields.items()},
                team=team,
                saved=last_entry(team, team, "team.retention_changed"),
            )
        return redirect_with(request, chosen.words, "team_storage", team.slug)
    preview = RetentionForm(request.GET) if "days" in request.GET else None
    return _show(request, membership, preview)


def _periods(form: RetentionForm, data: QueryDict) -> dict[str, Any]:
    """Read the periods of a valid form; one that is absent stays as it is."""
    return {name: value for name, value in form.cleaned_data.items() if name in data}


def _show(
    request: Request,
    membership: Membership,
    form: RetentionForm | None,
    *,
    status: int = 200,
) -> HttpResponse:
    team = membership.team
    now = retention_of(team)
    data = request.POST or request.GET
    is_valid = form is not None and form.is_valid()
    chosen = replace(now, **_periods(form, data)) if form and is_valid else now
    usage = quota_usage(team)
    context = {
        "team": team,
        "can_manage": membership.can_manage,
        "usage": usage,
        "parts": [(*words, usage.parts.get(key, 0)) for key, words in PARTS.items()],
        "form": form or RetentionForm(initial=asdict(now)),
        "base_version": data.get(BASE) or version_of(asdict(now)),
        "now": now,
        "chosen": chosen,
        "preview": preview_trash(team, chosen.days),
        "completions": preview_completions(team, chosen.completion_days),
    }
    return render(request, "operations/storage.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_changing_membership)
def team_compute(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """Choose the Ray cluster of the team's runs, of those that are allowed."""
    if request.method == "POST":
        form = ClusterForm(request.POST)
        if not form.is_valid():
            return _show_cluster(request, membership, form, status=422)
        try:
            address, base = form.cleaned_data["address"], request.POST.get(BASE, "")
            choose_address(team, request.user, address, base)
        except EditConflict as conflict:
            return show_conflict(
                request,
                conflict,
                what=f"Compute of {team}",
                back=request.path,
                labels={"address": str(form.fields["address"].label)},
                choices={"address": cluster_choices()},
                team=team,
                saved=last_entry(team, team, "team.cluster_changed"),
            )
        return redirect_with(
            request,
            f"Ray cluster: {address_of(team) or 'none'}.",
            "team_compute",
            team.slug,
        )
    return _show_cluster(request, membership, ClusterForm())


def cluster_choices() -> dict[str, str]:
    default: str = settings.COHORT_RAY_ADDRESS
    others = [address for address in allowed_addresses() if address != default]
    return {
        "": f"{default or 'None'} (default)",
        **{address: address for address in others},
    }


class ClusterForm(forms.Form):
    address = select_field("Cluster of the team", required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_choices(self, "address", list(cluster_choices().items()))


def _show_cluster(
    request: Request,
    membership: Membership,
    form: ClusterForm,
    *,
    status: int = 200,
) -> HttpResponse:
    team = membership.team
    chosen = TeamCluster.objects.filter(team=team).values_list("address", flat=True)
    address = chosen.first() or ""
    context = {
        "team": team,
        "can_manage": membership.can_manage,
        "cluster": known_cluster(team),
        "form": form if form.is_bound else ClusterForm(initial={"address": address}),
        "base_version": request.POST.get(BASE) or version_of({"address": address}),
        "has_choice": len(allowed_addresses()) > bool(settings.COHORT_RAY_ADDRESS),
        "withdrawn": address if address and address not in allowed_addresses() else "",
        "default": settings.COHORT_RAY_ADDRESS,
    }
    return render(request, "supervision/team_compute.html", context, status=status)


@never_cache
@require_safe
@look_up(get_managing_membership)
def audit_log(request: Request, team: Team) -> HttpResponse:
    form = FilterForm(request.GET, team=team)
    page = Paginator(form.narrow(), PER_PAGE).get_page(request.GET.get("page"))
    entries = list(page.object_list)
    context = {
        "team": team,
        "form": form,
        "page": page,
        "lines": [
            {"entry": entry, "about": about, "details": _details(entry)}
            for entry, about in zip(entries, show_objects(team, entries), strict=True)
        ],
        "num_entries": (
            form.entries.count() if form.is_narrowed else page.paginator.count
        ),
        "formats": WRITERS,
    }
    return render(
        request,
        "operations/audit_log.html",
        context,
        status=400 if form.errors else 200,
    )


def _details(entry: AuditEntry) -> list[tuple[str, str]]:
    detail = entry.detail
    before, after = detail.get("before"), detail.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        rest = {k: v for k, v in detail.items() if k not in ("before", "after")}
        # Values of fields before and after a change.
        pairs = {
            f"{name} {when}": values.get(name)
            for name in after
            for when, values in (("before", before), ("after", after))
        }
        detail = {**pairs, **rest}
    return [(k, _text(value)) for k, value in detail.items() if value not in ("", [])]


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@never_cache
@require_safe
@look_up(get_managing_membership)
def audit_log_file(request: Request, team: Team, file_format: str) -> HttpResponseBase:
    """Send all entries that the filters leave, not a page of them."""
    if file_format not in WRITERS:
        raise Http404("Format not found.")
    form = FilterForm(request.GET, team=team)
    if not form.is_valid():
        return audit_log(request, team.slug)  # which says what is wrong
    file = attach(
        joined(WRITERS[file_format](form.narrow())),
        filename=f"audit-log-{team.slug}.{file_format}",
        content_type=f"{TYPES[file_format]}; charset=utf-8",
    )
    return mark_for_spreadsheets(file)
