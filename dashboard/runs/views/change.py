"""A run's page of what may change after its launch: its steps and its intervals."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import User
from dashboard.project.edits import EditConflict, show_conflict
from dashboard.runs.changes import (
    ENDED_WELL,
    HEARING,
    STEPS,
    change_run,
    extend_run,
    interval_fields,
    next_step,
    propose_steps,
    read_intervals,
    read_steps,
    setting_of,
    why_not_here,
)
from dashboard.runs.checkpoints.listing import resumable
from dashboard.runs.config.snapshot import compare_rates
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run, list_changes
from trainer.config import RunConfig, change_settings


@require_http_methods(["GET", "HEAD", "POST"])
def run_change(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    if request.method == "POST":
        try:
            _answer(request, run)
        except EditConflict as conflict:
            return show_conflict(
                request,
                conflict,
                what=run.name,
                back=request.path,
                labels={field.path: field.title for field in interval_fields()},
                team=team_,
            )
        return redirect("run_change", team_.slug, run.id)
    if run.is_imported:
        messages.error(request, why_not_here(run))
        return redirect("run", team_.slug, run.id)
    num_steps, said = None, ""
    try:
        num_steps = propose_steps(request.GET.get("num_steps", ""), run)
    except ValueError as error:
        said = str(error)
    first = next_step(run)
    config = RunConfig.model_validate(run.config)
    longer = change_settings(config, {STEPS: num_steps}) if num_steps else None
    context = {
        "team": team_,
        "run": run,
        "tab": "config",
        "has_ended_well": run.state in ENDED_WELL,
        "can_change": run.state in HEARING,
        "can_extend": run.state in (*HEARING, *ENDED_WELL),
        "has_checkpoint": resumable(run) is not None,
        "first_step": first,
        "num_steps": num_steps,
        "said": said,
        "proposed": num_steps or max(run.num_steps, first),
        "rates": compare_rates(config, longer, first=first) if longer else [],
        "is_constant": all(
            s.config.optim.schedule == "constant" for s in config.stages
        ),
        "settings": [(f, setting_of(run.config, f.path)) for f in interval_fields()],
        "changes": list_changes(run),
    }
    return render(request, "runs/change.html", context)


def _answer(request: HttpRequest, run: Run) -> None:
    assert isinstance(request.user, User)
    try:
        if "num_steps" in request.POST:
            number = read_steps(request.POST["num_steps"])
            extend_run(run=run, user=request.user, num_steps=number)
            messages.success(request, f"The run goes on to step {number:,}.")
            return
        edit = read_intervals(request.POST)
        change_run(run=run, user=request.user, edit=edit)
        messages.success(
            request, "Changed. A running trainer applies it after its current step."
        )
    except ValueError as error:
        messages.error(request, str(error))
