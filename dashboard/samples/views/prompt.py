from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.learning_curve import describe, draw_curves, make_points
from dashboard.samples.pass_rates import tally
from dashboard.samples.prompt_completions import read_completions_of
from dashboard.samples.prompt_forms import PromptViewForm
from dashboard.samples.prompt_visits import find_span, newest_group, read_visits
from dashboard.samples.prompts import make_lines
from dashboard.samples.rewards import why_nothing_is_right


@require_safe
def run_prompt(
    request: HttpRequest, team: str, run_id: int, prompt: int
) -> HttpResponse:
    """A prompt's learning curve, and all its completions."""
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = PromptViewForm.read(request.GET)
    context = {
        "team": team_,
        "run": run,
        "tab": "prompts",
        "prompt": prompt,
        "newest": newest_group(run, prompt),
        "form": form,
        **_learning(run, prompt, form),
    }
    return render(request, "samples/prompt.html", context)


def _learning(run: Run, prompt: int, form: PromptViewForm) -> dict[str, Any]:
    span = find_span(run, first=form.value("first_step"), last=form.value("last_step"))
    if span is None or form.errors:
        return {}
    visits = read_visits(run, span, prompt=prompt)
    if not len(visits):
        return {}
    tallies = tally(visits, num_last=form.value("visits"))
    (line,) = make_lines(run, list(tallies), visits)
    points = make_points(visits)
    page, completions = read_completions_of(
        run, prompt, visits, number=form.value("page")
    )
    return {
        "span": span,
        "problem": why_nothing_is_right(run, span.last),
        "line": line,
        "num_last": form.value("visits"),
        "points": points,
        "is_pooled": len(points) < len(visits),
        "figures": draw_curves(points),
        "said_of_pass": describe(points, of="pass"),
        "said_of_reward": describe(points, of="reward"),
        "page": page,
        "completions": completions,
    }
