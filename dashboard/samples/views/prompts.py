from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.core.paginator import Page, Paginator
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import get_membership_for, get_team
from dashboard.datasets.forms.target import TargetForm
from dashboard.datasets.selections import source_of
from dashboard.datasets.views.imports import follow
from dashboard.runs.models import Run
from dashboard.runs.queries import RELATED, get_run
from dashboard.samples.models import Group
from dashboard.samples.pass_shares import (
    Counts,
    Tallies,
    count,
    select,
    select_kind,
    sort,
    tally,
)
from dashboard.samples.prompt_forms import CLASS_WORDS, PromptFilterForm
from dashboard.samples.prompt_lines import make_lines
from dashboard.samples.prompt_visits import Span, Visits, find_span, read_visits
from dashboard.samples.recipes import why_nothing_is_right

PROMPTS_PER_PAGE = 20
MAX_RUNS = 100


@require_safe
def prompts_of_runs(request: HttpRequest, team: str) -> HttpResponse:
    """Which run's prompts a dataset is made of."""
    team_ = get_team(request, team)
    sampled = Exists(Group.objects.filter(run=OuterRef("pk")))
    runs = Run.objects.kept().filter(sampled, team=team_)
    context = {
        "team": team_,
        "runs": runs.select_related(*RELATED).order_by("-pk")[:MAX_RUNS],
        "num_runs": runs.count(),
    }
    return render(request, "samples/prompts_of_runs.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def run_prompts(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    """What each of a run's prompts learnt; the address says which, in what order."""
    is_post = request.method == "POST"
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    if run.dataset_version:
        run.dataset_version.dataset.team = membership.team  # which is at hand
    form = PromptFilterForm.read(request.GET)
    found = _find(run, form)
    which = form.value("which")
    target = TargetForm(
        membership.team,
        name=f"{run.name[:60]} {CLASS_WORDS.get(which, which)}",
        data=request.POST if is_post else None,
    )
    has_rows = run.dataset_version is not None and found.chosen is not None
    if is_post and has_rows and target.is_valid():
        assert run.dataset_version
        assert found.chosen is not None
        job = target.start(
            parent=run.dataset_version,
            source=_source(run, form, found),
            user=membership.user,
            positions=sorted(found.chosen["prompt"].tolist()),
        )
        if job:
            return follow(request, job)
    context = {
        "team": membership.team,
        "run": run,
        "tab": "prompts",
        "form": form,
        "found": found,
        "target": target,
        "can_write": membership.can_write,
        **_shown(run, form, found),
    }
    status = 422 if is_post else 200
    return render(request, "samples/prompts.html", context, status=status)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    span: Span | None = None
    visits: Visits | None = None
    counts: Counts | None = None
    chosen: Tallies | None = None  # None: there is nothing to choose
    problem: str = ""


def _find(run: Run, form: PromptFilterForm) -> Found:
    span = find_span(run, first=form.value("first_step"), last=form.value("last_step"))
    if span is None or form.errors or run.dataset_version is None:
        return Found(span=span)
    visits = read_visits(run, span)
    # A run of an outside trainer may number its prompts as it likes.
    num_known = np.searchsorted(visits["prompt"], run.dataset_version.num_rows)
    visits = visits[:num_known]
    tallies = tally(visits, num_last=form.value("visits"))
    chosen = _choose(tallies, form)
    return Found(
        span=span,
        visits=visits,
        counts=count(tallies),
        chosen=sort(chosen, form.value("sort")) if len(chosen) else None,
        problem=why_nothing_is_right(run, span.last),
    )


def _choose(tallies: Tallies, form: PromptFilterForm) -> Tallies:
    if form.kind:
        return select_kind(tallies, form.kind)
    if form.bounds is None:
        return tallies
    low, high = form.bounds
    return select(tallies, low=low, high=high)


def _source(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
    assert found.span
    assert run.dataset_version
    return source_of(
        run.dataset_version,
        kind="run",
        query=form.query_of(found.span),
        how=f"{form.words} in {run.name}, {form.span_words(found.span)}",
        run_id=run.pk,
        run=run.name,
        first_step=found.span.first,
        last_step=found.span.last,
    )


def _shown(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
    """A page of what was chosen; one query."""
    if found.span is None or found.counts is None or found.visits is None:
        return {}
    shown = {
        "chips": _chips(form, found.counts),
        "visits_counted": form.span_words(found.span),
        "sort": form.value("sort"),
        "view_query": form.view_query,
    }
    if found.chosen is None:
        return shown
    page: Page[Any] = Paginator(found.chosen, PROMPTS_PER_PAGE).get_page(
        form.value("page")
    )
    return shown | {
        "page": page,
        "lines": make_lines(run, list(page), found.visits),
        "query": form.query_of(found.span),
    }


def _chips(form: PromptFilterForm, counts: Counts) -> list[tuple[str, str, int, bool]]:
    """A filter each: its value, its word, how many prompts, whether it is set."""
    which = form.value("which")
    chips = [("all", "all", counts.seen, which == "all")]
    return chips + [
        (kind, CLASS_WORDS[kind], num, which == kind)
        for kind, num in counts.kinds.items()
        if num or which == kind or kind != "unscored"
    ]
