"""Actions on the runs selected in the list, or on one run from its page."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request, read_id, report_refusal
from dashboard.project.errors import UserError, code_of
from dashboard.runs.attributes import describe_run
from dashboard.runs.bulk_actions import ACTIONS, Outcome, act
from dashboard.runs.models import Run
from dashboard.runs.queries import get_any_run, get_run
from dashboard.runs.table.query import ListQuery
from dashboard.runs.table.sql import join_or
from dashboard.runs.trash import delete_run
from dashboard.web.edits import (
    BASE,
    EditConflict,
    read_fields,
    show_conflict,
    show_refusal,
)

MAX_NAMED = 5  # refused runs in a message
# Actions that viewers may do.
FOR_VIEWERS = ("compare", "export", "star", "unstar")


def _read_action(request: HttpRequest) -> str:
    """Read the action; a row's own button names it by its field."""
    marks = (mark for mark in ("unstar", "star") if mark in request.POST)
    return next(marks, request.POST.get("action", ""))


def get_acting_membership(request: HttpRequest, slug: str) -> Membership:
    """Return the membership; viewers are refused most actions."""
    is_for_viewers = _read_action(request) in FOR_VIEWERS
    return (get_membership if is_for_viewers else get_writing_membership)(request, slug)


@require_POST
@look_up(get_acting_membership)
def runs_act(request: Request, team: Team) -> HttpResponse:
    """Act on the runs in `runs`, or with `all` on all that match the address."""
    name, address = _read_action(request), request.POST.get("address", "")
    back = reverse("runs", args=[team.slug]) + (f"?{address}" if address else "?view=")
    try:
        runs = _chosen(request, team, address)
        if name == "compare":
            ids = _ids(runs.filter(trashed_at=None)[:1_000])
            compare = reverse("compare", args=[team.slug])
            return redirect(f"{compare}?runs={','.join(ids)}")
        if name == "export":
            text = "".join(f"{pk}\n" for pk in _ids(runs.order_by("-pk")))
            disposition = f'attachment; filename="{team.slug}-runs.txt"'
            return HttpResponse(
                text,
                content_type="text/plain; charset=utf-8",
                headers={"Content-Disposition": disposition},
            )
        if name not in ACTIONS:
            raise UserError("runs.unknown_action", f"Unknown action {name[:40]!r}.")
        argument = request.POST.get("tag", "")
        outcome = act(name, runs, team=team, user=request.user, argument=argument)
    except ValueError as error:
        if _wants_json(request):
            content = {"error": str(error), "code": code_of(error)}
            return JsonResponse(content, status=422)
        messages.error(request, str(error))
        return redirect(back)
    if _wants_json(request):
        return JsonResponse(
            {"message": describe_outcome(name, outcome), "done": len(outcome.done)}
        )
    _show_outcome(request, name, outcome)
    return redirect(back)


def _chosen(request: Request, team: Team, address: str) -> QuerySet[Run]:
    """UserError if none is named, or the query is invalid."""
    if "all" in request.POST:
        return ListQuery.read(QueryDict(address)).find(team, request.user)
    named = request.POST.get("star") or request.POST.get("unstar")
    keys = [named] if named else request.POST.getlist("runs")
    ids = [pk for text in keys if (pk := read_id(text)) is not None]
    if not ids:
        raise UserError(
            "runs.none_selected", "No runs selected. Select runs, or all that match."
        )
    return Run.objects.filter(team=team, pk__in=ids).order_by("pk")


def _wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("Accept", "")


def _ids(runs: QuerySet[Run]) -> list[str]:
    return [str(pk) for pk in runs.values_list("pk", flat=True)]


def _show_outcome(request: Request, name: str, outcome: Outcome) -> None:
    show = messages.success if outcome.done else messages.info
    if outcome.done and outcome.refused:
        show = messages.warning
    show(request, describe_outcome(name, outcome))


def describe_outcome(name: str, outcome: Outcome) -> str:
    """Tell how many runs changed, and which did not, and why."""
    done, num = ACTIONS[name].done, len(outcome.done)
    if num == 1:
        message = f"{outcome.done[0].name} was {done}."
    elif num:
        message = f"{num:,} runs were {done}."
    else:
        message = f"No run was {done}."
    refused = outcome.refused
    if not refused:
        return message if num else f"{message} None matches."
    if len(refused) == 1 and not num:
        return f"{message} {_name(*refused[0])}."
    reasons = "; ".join(_name(run, reason) for run, reason in refused[:MAX_NAMED])
    more = len(refused) - MAX_NAMED
    rest = f"; and {more:,} more" if more > 0 else ""
    was = "was" if len(refused) == 1 else "were"
    return f"{message} {len(refused):,} {was} not: {reasons}{rest}."


def _name(run: Run, reason: str) -> str:
    return f"{run.name} (#{run.pk}) {reason}"


@require_POST
@look_up(get_acting_membership, run=get_any_run)
def run_act(request: Request, team: Team, run: Run) -> HttpResponse:
    """Act on one run from its page; also delete one in the trash."""
    name = _read_action(request)
    if name == "delete":
        try:
            delete_run(run, request.user)
        except ValueError as error:
            messages.error(request, str(error))
            return redirect("run", team.slug, run.pk)
        messages.success(request, f"Deleted {run.name} permanently.")
        return redirect(f"{reverse('runs', args=[team.slug])}?q=trashed")
    if name not in ACTIONS:
        names = join_or(sorted(ACTIONS))
        messages.error(request, f"Unknown action {name[:40]!r}. Use {names}.")
        return redirect("run", team.slug, run.pk)
    runs = Run.objects.filter(pk=run.pk)
    tag = request.POST.get("tag", "")
    with report_refusal(request):
        outcome = act(name, runs, team=team, user=request.user, argument=tag)
        _show_outcome(request, name, outcome)
    # To the page that sent the request, if it is one of ours.
    path = request.POST.get("next", "")
    if path[:1] == "/" and url_has_allowed_host_and_scheme(path, allowed_hosts=None):
        return redirect(path)
    return redirect("run", team.slug, run.pk)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_describe(request: Request, team: Team, run: Run) -> HttpResponse:
    """Change name, notes and tags from the dialog on its page."""
    names = ("name", "notes", "tags")
    typed, base = read_fields(request.POST, names), request.POST.get(BASE, "")
    back = reverse("run", args=[team.slug, run.pk])
    page: dict[str, Any] = {"what": run.name, "back": back, "team": team}
    try:
        changed = describe_run(run=run, user=request.user, typed=typed, base=base)
    except EditConflict as conflict:
        saved = last_entry(team, run, "run.described", "run.tagged", "run.untagged")
        return show_conflict(request, conflict, saved=saved, **page)
    except ValueError as error:
        return show_refusal(request, names, refusal=str(error), **page)
    fields = ", ".join(changed)
    messages.success(request, f"Changed: {fields}." if fields else "No changes.")
    return redirect("run", team.slug, run.pk)
