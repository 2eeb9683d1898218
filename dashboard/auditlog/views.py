from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_managed_team
from dashboard.accounts.models import AuditEntry, Team
from dashboard.auditlog.exports import TYPES, WRITERS
from dashboard.auditlog.forms import FilterForm
from dashboard.auditlog.objects import Shown, show_objects
from dashboard.datasets.row_exports import joined
from dashboard.project.downloads import Streamed

PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class Line:
    entry: AuditEntry
    about: Shown
    details: list[tuple[str, str]]


@never_cache
@require_safe
def audit_log(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_managed_team(request, team)
    form = FilterForm(request.GET, team=team_)
    page = Paginator(form.narrow(), PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "team": team_,
        "form": form,
        "page": page,
        "lines": _lines(team_, page),
        "num_entries": _count(form, page),
        "formats": WRITERS,
    }
    status = 400 if form.errors else 200
    return render(request, "auditlog/list.html", context, status=status)


def _count(form: FilterForm, page: Page[AuditEntry]) -> int:
    return form.entries.count() if form.is_narrowed else page.paginator.count


def _lines(team: Team, page: Page[AuditEntry]) -> list[Line]:
    entries = list(page.object_list)
    return [
        Line(entry, about, _details(entry))
        for entry, about in zip(entries, show_objects(team, entries), strict=True)
    ]


def _details(entry: AuditEntry) -> list[tuple[str, str]]:
    told = _flat(entry.detail).items()
    return [(key, _said(value)) for key, value in told if value not in ("", [])]


def _flat(detail: dict[str, Any]) -> dict[str, Any]:
    """What fields held before and hold after a change, field by field."""
    before, after = detail.get("before"), detail.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return detail
    rest = {k: v for k, v in detail.items() if k not in ("before", "after")}
    each = {
        f"{name} {when}": detail[when].get(name)
        for name in after
        for when in ("before", "after")
    }
    return {**each, **rest}


def _said(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@never_cache
@require_safe
def audit_log_file(
    request: HttpRequest, team: str, file_format: str
) -> HttpResponseBase:
    """All that the filters leave, not a page of it."""
    team_ = get_managed_team(request, team)
    if file_format not in WRITERS:
        raise Http404("No such format.")
    form = FilterForm(request.GET, team=team_)
    if not form.is_valid():
        return audit_log(request, team)  # which says what is wrong
    return send_log(team_, file_format, form)


def send_log(team: Team, file_format: str, form: FilterForm) -> HttpResponseBase:
    """What a valid form leaves, as a file."""
    name = f"audit-log-{team.slug}.{file_format}"
    return Streamed(
        joined(WRITERS[file_format](form.narrow())),
        content_type=f"{TYPES[file_format]}; charset=utf-8",
        headers={"Content-Disposition": content_disposition_header(True, name)},
    )
