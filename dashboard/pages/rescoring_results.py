"""Rescorings: the list, one's progress and result, and its completions as a file."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.analysis.rescoring.credit import SIGNALS
from dashboard.analysis.rescoring.figures import (
    TYPES,
    WRITERS,
    draw_means,
    draw_scatter,
)
from dashboard.analysis.rescoring.forms import ChangesForm
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.results import (
    Change,
    list_changes,
    read_columns,
    summarize,
)
from dashboard.analysis.rescoring.services import (
    KEPT,
    MAX_FAILURES,
    MOST_KEPT,
    delete_rescoring,
    get_rescoring,
    list_failures,
    list_rescorings,
    request_stop,
)
from dashboard.completions.rewards import rule_names
from dashboard.datasets.row_exports import joined
from dashboard.jobs.queue import waiting_reason
from dashboard.pages.requests import Request, read_id
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.runs.charts.chart import NOTE, has_clipped
from dashboard.runs.queries import get_run
from dashboard.web.downloads import attach, mark_for_spreadsheets
from trainer.rewards.spec import Recipe

PER_PAGE = 25


@require_safe
@look_up(get_membership)
def rescorings(request: Request, team: Team) -> HttpResponse:
    """?run= leaves the others out."""
    run_id = read_id(request.GET.get("run"))
    run = None if run_id is None else get_run(team, run_id)
    pages = Paginator(list_rescorings(team, run).defer("steps"), PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    context = {
        "team": team,
        "run": run,
        "page": page,
        "listed": [(rescoring_, _sentence(rescoring_)) for rescoring_ in page],
        "kept_days": KEPT.days,
        "most_kept": MOST_KEPT,
    }
    return render(request, "rescoring/list.html", context)


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring(request: Request, team: Team, rescoring: Rescoring) -> HttpResponse:
    """?show=&sort=&page= of the table of completions."""
    context = _context(team, rescoring)
    if not rescoring.is_open:
        context |= _result(rescoring, ChangesForm(request.GET))
    return render(request, "rescoring/result.html", context)


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring_progress(
    request: Request, team: Team, rescoring: Rescoring
) -> HttpResponse:
    """Show the progress; requested every second while it changes."""
    response = render(request, "rescoring/progress.html", _context(team, rescoring))
    if not rescoring.is_open:
        response["HX-Refresh"] = "true"  # for what was found, with its charts
    return response


@require_POST
@look_up(get_writing_membership)
def rescoring_stop(request: Request, team: Team, rescoring_id: int) -> HttpResponse:
    request_stop(rescoring=get_rescoring(team, rescoring_id), user=request.user)
    return redirect("rescoring", team.slug, rescoring_id)


@require_POST
@look_up(get_writing_membership, rescoring=get_rescoring)
def rescoring_delete(
    request: Request, team: Team, rescoring: Rescoring
) -> HttpResponse:
    try:
        delete_rescoring(rescoring=rescoring, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("rescoring", team.slug, rescoring.pk)
    messages.success(request, f"Deleted rescoring {rescoring.pk}.")
    return redirect("rescorings", team.slug)


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring_export(
    request: Request, rescoring: Rescoring, file_format: str
) -> HttpResponseBase:
    if file_format not in WRITERS:
        raise Http404(f"Unknown export format {file_format!r}.")
    file = attach(
        joined(WRITERS[file_format](rescoring)),
        filename=f"{rescoring.run.name}-rescoring-{rescoring.pk}.{file_format}",
        content_type=f"{TYPES[file_format]}; charset=utf-8",
    )
    return mark_for_spreadsheets(file)


def _sentence(rescoring_: Rescoring) -> str:
    if rescoring_.spec is None:
        return "The recipe of each step"
    try:
        return recipe_sentence(Recipe.model_validate(rescoring_.spec))
    except ValueError:
        return "A recipe with unknown rules"


def _context(team: Team, rescoring_: Rescoring) -> dict[str, Any]:
    return {
        "team": team,
        "rescoring": rescoring_,
        "run": rescoring_.run,
        "sentence": _sentence(rescoring_),
        "waiting": waiting_reason(rescoring_.job) if rescoring_.job else "",
        "kept_until": rescoring_.finished_at and rescoring_.finished_at + KEPT,
    }


def _result(rescoring_: Rescoring, form: ChangesForm) -> dict[str, Any]:
    summary = rescoring_.result or summarize(rescoring_)
    if not summary:
        return {}
    completions = read_columns(rescoring_).completions
    page = list_changes(completions, **form.chosen)
    scatter, means = draw_scatter(completions), draw_means(completions)
    names = {rule["name"] for rule in summary["rules"]}
    return {
        "summary": summary,
        "is_same": summary["num_equal"] == summary["num"],
        "shares": _shares(summary),
        "signals": SIGNALS,
        "matrix": list(zip(SIGNALS, summary["matrix"], strict=True)),
        "left_out": [name for name in rule_names(rescoring_.run) if name not in names],
        "form": form,
        "page": page,
        "changes": [Change.of(completions[index]) for index in page],
        "note": NOTE if has_clipped([completions["old"], completions["new"]]) else "",
        "scatter": scatter,
        "means": means,
        "figures": {"scatter": scatter.figure, "means": means.figure},
        "failures": list_failures(rescoring_) if summary["num_failures"] else [],
        "max_failures": MAX_FAILURES,
    }


def _shares(summary: dict[str, Any]) -> dict[str, str]:
    """Return shares of counts, in percent."""
    pairs = {
        "moved": ("num_moved", "num_both"),
        "reordered": ("num_reordered", "num_pairs"),
        "gained": ("num_gained", "num_groups"),
        "lost": ("num_lost", "num_groups"),
        "mixed_old": ("num_mixed_old", "num_groups"),
        "mixed_new": ("num_mixed_new", "num_groups"),
        "advantages": ("num_advantages_changed", "num_advantages"),
        "turned": ("num_turned", "num_advantages"),
    }
    return {
        name: f"{summary[part] / summary[whole]:.1%}".replace("%", " %")
        for name, (part, whole) in pairs.items()
        if summary[whole]
    }
