"""Control of a run: extend and change it, stop, cancel, pause and resume it."""

from __future__ import annotations

from collections.abc import Callable

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_writing_membership, look_up
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request
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
from dashboard.runs.queries import get_run, list_changes, settings_of
from dashboard.web.edits import BASE, EditConflict, show_conflict, version_of
from trainer.config import change_settings


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
