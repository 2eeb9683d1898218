"""Actions on runs selected in the list, and control of one run from its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request, read_id, redirect_with, report_refusal
from dashboard.project.errors import UserError, code_of
from dashboard.runs.attributes import describe_run
from dashboard.runs.bulk_actions import ACTIONS, Outcome, act
from dashboard.runs.changes import (
    CHANGEABLE,
    ENDED_WELL,
    STEPS,
    change_run,
    explain_not_trained_here,
    extend_run,
    interval_fields,
    intervals_of,
    next_step,
    propose_steps,
    read_intervals,
    read_steps,
)
from dashboard.runs.checkpoints.listing import resumable
from dashboard.runs.config.snapshot import compare_rates
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import get_any_run, get_run, list_changes, settings_of
from dashboard.runs.table.query import ListQuery
from dashboard.runs.table.sql import join_or
from dashboard.runs.trash import delete_run
from dashboard.web.edits import (
    BASE,
    EditConflict,
    read_fields,
    show_conflict,
    show_refusal,
    version_of,
)
from trainer.config import change_settings

MAX_NAMED = 5  # refused runs in a message


def _read_action(request: HttpRequest) -> str:
    """Read the action; a row's own button names it by its field."""
    marks = (mark for mark in ("unstar", "star") if mark in request.POST)
    return next(marks, request.POST.get("action", ""))


def get_acting_membership(request: HttpRequest, slug: str) -> Membership:
    """Return the membership; viewers are refused most actions."""
    is_for_viewers = _read_action(request) in ("compare", "export", "star", "unstar")
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
        return redirect_with(
            request,
            f"Deleted {run.name} permanently.",
            f"{reverse('runs', args=[team.slug])}?q=trashed",
        )
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
    return redirect_with(
        request,
        f"Changed: {fields}." if fields else "No changes.",
        "run",
        team.slug,
        run.pk,
    )


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership, run=get_run)
def run_change(request: Request, team: Team, run: Run) -> HttpResponse:
    if request.method == "POST":
        try:
            _apply(request, run)
        except EditConflict as conflict:
            return show_conflict(
                request,
                conflict,
                what=run.name,
                back=request.path,
                labels={field.path: field.title for field in interval_fields()},
                team=team,
                saved=last_entry(team, run, "run.settings_changed"),
            )
        return redirect("run_change", team.slug, run.id)
    config = settings_of(run)
    if config is None:
        messages.error(request, explain_not_trained_here(run))
        return redirect("run", team.slug, run.id)
    num_steps, error_message = None, ""
    try:
        num_steps = propose_steps(request.GET.get("num_steps", ""), run)
    except ValueError as error:
        error_message = str(error)
    first, intervals = next_step(run), intervals_of(run)
    longer = change_settings(config, {STEPS: num_steps}) if num_steps else None
    context = {
        "team": team,
        "run": run,
        "tab": "config",
        "has_ended_well": run.state in ENDED_WELL,
        "can_change": run.state in CHANGEABLE,
        "can_extend": run.state in (*CHANGEABLE, *ENDED_WELL),
        "has_checkpoint": resumable(run) is not None,
        "first_step": first,
        "num_steps": num_steps,
        "error": error_message,
        "proposed": num_steps or max(run.num_steps, first),
        "rates": compare_rates(config, longer, first=first) if longer else [],
        "is_constant": all(
            s.config.optim.schedule == "constant" for s in config.phase_configs
        ),
        "settings": [(f, intervals[f.path]) for f in interval_fields()],
        "base_version": version_of(intervals),
        "changes": list_changes(run),
    }
    return render(request, "runs/change.html", context)


def _apply(request: Request, run: Run) -> None:
    try:
        if "num_steps" in request.POST:
            number = read_steps(request.POST["num_steps"])
            extend_run(run=run, user=request.user, num_steps=number)
            messages.success(request, f"The run continues to step {number:,}.")
            return
        settings, base = read_intervals(request.POST), request.POST.get(BASE, "")
        change_run(run=run, user=request.user, settings=settings, base=base)
        messages.success(
            request, "Changed. A running trainer applies it after its current step."
        )
    except ValueError as error:
        messages.error(request, str(error))


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_stop(request: Request, run: Run) -> HttpResponse:
    return _control(request, run, request_stop, "stop")


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_cancel(request: Request, run: Run) -> HttpResponse:
    return _control(request, run, cancel_run, "cancel")


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_pause(request: Request, run: Run) -> HttpResponse:
    return _control(request, run, request_pause, "pause")


def _control(
    request: Request, run: Run, action: Callable[..., bool], verb: str
) -> HttpResponse:
    if not action(run=run, user=request.user):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Cannot {verb} the run: it is {run.state}.")
    return redirect("run", run.team.slug, run.id)


class ResumeForm(forms.Form):
    max_error_share = forms.FloatField(required=False, min_value=0, max_value=1)
    attempt = forms.IntegerField(required=False)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_resume(request: Request, run: Run) -> HttpResponse:
    form = ResumeForm(request.POST)
    if not form.is_valid():
        message = "The form is incomplete. Press Resume again."
        if "max_error_share" in form.errors:
            share = request.POST.get("max_error_share", "")[:40]
            message = (
                "Not resumed: Errors allowed must be a number from 0 to 1; got "
                f"{share!r}."
            )
        messages.error(request, message)
    elif not resume_run(
        run=run,
        user=request.user,
        max_error_share=form.cleaned_data["max_error_share"],
        seen_attempt=form.cleaned_data["attempt"],
    ):
        run.refresh_from_db(fields=["state", "last_step", "locked_at", "attempt"])
        messages.info(request, _not_resumed(run, form.cleaned_data["attempt"]))
    return redirect("run", run.team.slug, run.id)


def _not_resumed(run: Run, seen_attempt: int | None) -> str:
    if run.state != RunState.PAUSED:
        return f"Cannot resume the run: it is {run.state}."
    if run.locked_at is not None and run.attempt == seen_attempt:
        return (
            "Not resumed: the run is locked, so Errors allowed cannot change. Unlock "
            "the run, or keep the value."
        )
    return (
        "Not resumed: the run was resumed and paused again after step "
        f"{run.last_step}. Check why, then press Resume again."
    )
