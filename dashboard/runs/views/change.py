"""A run's page of what may change after its launch: its steps and its intervals."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import User
from dashboard.runs.changing import (
    ENDED_WELL,
    HEARING,
    STEPS,
    change_run,
    extend_run,
    setting_of,
)
from dashboard.runs.config.fields import ConfigField, all_fields
from dashboard.runs.config.rates import compare_rates
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run, list_changes
from trainer.config import MAY_CHANGE, RunConfig, change_settings

INTERVALS = tuple(path for path in MAY_CHANGE if path != STEPS)
MAX_STEPS = 10_000_000


@require_http_methods(["GET", "HEAD", "POST"])
def run_change(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    if request.method == "POST":
        _answer(request, run)
        return redirect("run_change", team_.slug, run.id)
    first = _next_step(run)
    num_steps, said = _asked_steps(request, run, first)
    config = RunConfig.model_validate(run.config)
    longer = change_settings(config, {STEPS: num_steps}) if num_steps else None
    context = {
        "team": team_,
        "run": run,
        "tab": "config",
        "has_ended_well": run.state in ENDED_WELL,
        "can_change": run.state in HEARING,
        "can_extend": run.state in (*HEARING, *ENDED_WELL),
        "has_checkpoint": run.newest_checkpoint is not None,
        "first_step": first,
        "num_steps": num_steps,
        "said": said,
        "proposed": num_steps or max(run.num_steps, first),
        "rates": compare_rates(config, longer, first=first) if longer else [],
        "is_constant": all(
            s.config.optim.schedule == "constant" for s in config.stages
        ),
        "settings": [(f, setting_of(run.config, f.path)) for f in _fields()],
        "changes": list_changes(run),
    }
    return render(request, "runs/change.html", context)


def _fields() -> list[ConfigField]:
    return [all_fields()[path] for path in INTERVALS]


def _next_step(run: Run) -> int:
    """The first one that an extension could change."""
    if run.state not in ENDED_WELL:
        return run.last_step + 1
    return run.newest_checkpoint.step + 1 if run.newest_checkpoint else 1


def _asked_steps(request: HttpRequest, run: Run, first: int) -> tuple[int | None, str]:
    text = request.GET.get("num_steps", "").strip().replace(",", "")
    if not text:
        return None, ""
    lowest = first if run.state in ENDED_WELL else run.num_steps + 1
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if lowest <= number <= MAX_STEPS:
        return number, ""
    return None, (
        f"The last step must be a whole number from {lowest:,} to {MAX_STEPS:,}; got "
        f"{text[:40]!r}."
    )


def _answer(request: HttpRequest, run: Run) -> None:
    assert isinstance(request.user, User)
    try:
        if "num_steps" in request.POST:
            number = _whole(request.POST["num_steps"], "The last step")
            extend_run(run=run, user=request.user, num_steps=number)
            messages.success(request, f"The run goes on to step {number:,}.")
            return
        change_run(run=run, user=request.user, settings=_read(request))
        messages.success(
            request, "Changed. A trainer at work hears of it behind its step."
        )
    except ValueError as error:
        messages.error(request, str(error))


def _read(request: HttpRequest) -> dict[str, int]:
    """Only what was changed on this page: it may be older than others' changes."""
    asked = {}
    for field in _fields():
        given = request.POST.get(field.path, "").strip()
        if given and given != request.POST.get(f"was.{field.path}"):
            asked[field.path] = _whole(given, field.title)
    return asked


def _whole(text: str, what: str) -> int:
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 9:
        return int(text)
    raise ValueError(f"{what} must be a whole number; got {text[:40]!r}.")
