"""Prompts of a run, their learning curves, and datasets from prompts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.db.models import Exists, OuterRef
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_membership_for,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.curriculum import read_lab
from dashboard.completions.groups import read_completions_of
from dashboard.completions.learning_curve import describe, draw_curves, make_points
from dashboard.completions.models import Group
from dashboard.completions.pass_rates import Counts, Kind, tally
from dashboard.completions.prompt_forms import (
    CLASS_WORDS,
    PromptFilterForm,
    PromptViewForm,
    share_words,
)
from dashboard.completions.prompt_visits import find_span, newest_group, read_visits
from dashboard.completions.prompts import (
    Found,
    find_prompts,
    make_lines,
    shorten,
    source_of_prompts,
)
from dashboard.completions.rewards import correct_if, why_nothing_is_right
from dashboard.datasets.import_forms import TargetForm
from dashboard.pages.dataset_uploads import follow
from dashboard.pages.requests import Request
from dashboard.runs.models import Run
from dashboard.runs.queries import RELATED, get_run, pass_rates_file

PROMPTS_PER_PAGE = 20
MAX_RUNS = 100
MAX_DROPPED = 50  # listed


@require_safe
@look_up(get_membership)
def prompts_of_runs(request: Request, team: Team) -> HttpResponse:
    """Choose a run to create a dataset from its prompts."""
    sampled = Exists(Group.objects.filter(run=OuterRef("pk")))
    runs = Run.objects.kept().filter(sampled, team=team)
    context = {
        "team": team,
        "runs": runs.select_related(*RELATED).order_by("-pk")[:MAX_RUNS],
        "num_runs": runs.count(),
    }
    return render(request, "completions/prompts_of_runs.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def run_prompts(
    request: Request, membership: Membership, team: Team, run: Run
) -> HttpResponse:
    """List a run's prompts with pass rates, filtered and sorted by the URL."""
    is_post = request.method == "POST"
    if run.dataset_version:
        run.dataset_version.dataset.team = team  # saves a query
    form = PromptFilterForm.read(request.GET)
    matches = find_prompts(run, form)
    which = form.value("which")
    target = TargetForm(
        team,
        name=f"{run.name[:60]} {CLASS_WORDS.get(which, which)}",
        data=request.POST if is_post else None,
    )
    has_rows = run.dataset_version is not None and matches.chosen is not None
    if is_post and has_rows and target.is_valid():
        assert run.dataset_version
        assert matches.chosen is not None
        job = target.start(
            parent=run.dataset_version,
            source=source_of_prompts(run, form, matches),
            user=membership.user,
            positions=sorted(matches.chosen["prompt"].tolist()),
        )
        if job:
            return follow(request, job)
    context = {
        "team": team,
        "run": run,
        "tab": "prompts",
        "form": form,
        "chips": form.chips(request.GET),
        "found": matches,
        "target": target,
        "can_write": membership.can_write,
        **_shown(run, form, matches),
    }
    return render(
        request, "completions/prompts.html", context, status=422 if is_post else 200
    )


def _shown(run: Run, form: PromptFilterForm, matches: Found) -> dict[str, Any]:
    """Describe a page of the matching prompts; one query."""
    if matches.span is None or matches.counts is None or matches.visits is None:
        return {}
    # The histogram of pass rates, each bar a filter.
    most = max((num for *_, num in matches.bins), default=0)
    chosen = form.bounds
    context = {
        "tiles": _tiles(form, matches.counts),
        "bars": [
            {
                "low": f"{low:g}",
                "high": f"{high:g}",
                "num": num,
                "words": f"{low:g}%" if low == high else share_words(low, high),
                "height": 100 * num / most if most else 0,
                "is_set": chosen is not None and chosen[0] <= low and high <= chosen[1],
            }
            for low, high, num in matches.bins
        ],
        "visits_counted": form.span_words(matches.span),
        "sort": form.value("sort"),
        "view_query": form.view_query,
    }
    if matches.chosen is None:
        return context
    page: Page[Any] = Paginator(matches.chosen, PROMPTS_PER_PAGE).get_page(
        form.value("page")
    )
    return context | {
        "page": page,
        "lines": make_lines(run, list(page), matches.visits),
        "query": form.query_of(matches.span),
    }


def _tiles(form: PromptFilterForm, counts: Counts) -> list[dict[str, Any]]:
    """Filters by class; another click removes one."""
    which = form.value("which")
    kinds: list[Kind] = ["never", "forgotten", "oscillating", "solved", "always"]
    if counts.kinds["unscored"] or which == "unscored":
        kinds.append("unscored")
    return [
        {
            "kind": kind,
            "num": counts.kinds[kind],
            "is_set": which == kind,
            "query": None if which == kind else kind,
        }
        for kind in kinds
    ]


@require_safe
@look_up(get_membership, run=get_run)
def run_curriculum(request: Request, team: Team, run: Run) -> HttpResponse:
    """Show what the run's curriculum drew, or a preview of one."""
    lab = read_lab(run)
    dropped = lab.dropped[:MAX_DROPPED] if lab else ()
    version, positions = run.dataset_version, [each["prompt"] for each in dropped]
    stored = version.rows.filter(position__in=positions) if version else ()
    texts = {row.position: shorten(row.question) for row in stored}
    address = reverse("run_new", args=[team.slug])
    start = {"clone": run.pk, "curriculum.start_from": pass_rates_file(run.pk)}
    previews = lab.previews if lab else ()
    context = {
        "team": team,
        "run": run,
        "tab": "prompts",
        "lab": lab,
        "dropped": [(each, texts.get(each["prompt"], "")) for each in dropped],
        "previews": [
            (each, f"{address}?{urlencode(start | {'curriculum.kind': each.kind})}")
            for each in previews
        ],
        "can_launch": version is not None and not run.is_imported,
    }
    return render(request, "completions/curriculum.html", context)


@require_safe
@look_up(get_membership, run=get_run)
def run_prompt(request: Request, team: Team, run: Run, prompt: int) -> HttpResponse:
    """Show a prompt's learning curve, and all its completions."""
    form = PromptViewForm.read(request.GET)
    newest = newest_group(run, prompt)
    learned = _learning(run, prompt, form)
    row = learned["line"].row if learned else None
    context = {
        "team": team,
        "run": run,
        "tab": "prompts",
        "prompt": prompt,
        "newest": newest,
        "question": row.question if row else newest.prompt,
        "form": form,
        "chips": form.chips(request.GET),
        **learned,
    }
    return render(request, "completions/prompt.html", context)


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
        "correct_if": correct_if(run, span.last),
        "problem": why_nothing_is_right(run, span.last),
        "line": line,
        "num_last": form.value("visits"),
        "points": points,
        "is_pooled": len(points) < len(visits),
        "figures": draw_curves(points),
        "pass_description": describe(points, of="pass"),
        "reward_description": describe(points, of="reward"),
        "page": page,
        "completions": completions,
    }
