from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import get_membership_for, get_team
from dashboard.datasets.forms.target import TargetForm
from dashboard.datasets.models import DatasetRow
from dashboard.datasets.selections import source_of
from dashboard.datasets.views.imports import follow
from dashboard.runs.models import Run
from dashboard.runs.queries import RELATED, get_run
from dashboard.samples.forms import PromptFilterForm
from dashboard.samples.models import Group
from dashboard.samples.pass_shares import (
    Counts,
    Span,
    Tallies,
    count,
    find_span,
    select,
    tally,
)

PROMPTS_PER_PAGE = 20
MAX_RUNS = 100
_NAMES = ("position", "num_seen", "last_step", "num_scored", "num_right")


@require_safe
def prompts_of_runs(request: HttpRequest, team: str) -> HttpResponse:
    """Which run's prompts a dataset is made of."""
    team_ = get_team(request, team)
    sampled = Exists(Group.objects.filter(run=OuterRef("pk")))
    runs = Run.objects.filter(sampled, team=team_)
    context = {
        "team": team_,
        "runs": runs.select_related(*RELATED).order_by("-pk")[:MAX_RUNS],
        "num_runs": runs.count(),
    }
    return render(request, "samples/prompts_of_runs.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def run_prompts(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    """A run's prompts by how often they were right; the address says which."""
    is_post = request.method == "POST"
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    run.dataset_version.dataset.team = membership.team  # which is at hand
    form = PromptFilterForm.read(request.GET)
    found = _find(run, form)
    target = TargetForm(
        membership.team,
        name=f"{run.name[:60]} {form.value('which')}",
        data=request.POST if is_post else None,
    )
    if is_post and found.chosen is not None and target.is_valid():
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
    counts: Counts | None = None
    chosen: Tallies | None = None  # None: there is nothing to choose
    problem: str = ""


def _find(run: Run, form: PromptFilterForm) -> Found:
    span = find_span(
        run,
        first=form.value("first_step"),
        last=form.value("last_step"),
        num_visits=form.value("visits"),
    )
    if span is None or form.errors:
        return Found(span=span)
    try:
        tallies = tally(run, span)
    except ValueError as error:
        return Found(span=span, problem=str(error))
    low, high = form.bounds
    chosen = select(tallies, low=low, high=high)
    return Found(
        span=span, counts=count(tallies), chosen=chosen if len(chosen) else None
    )


def _source(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
    assert found.span
    return source_of(
        run.dataset_version,
        kind="run",
        query=form.query_of(found.span),
        how=f"{form.words} in {run.name}, {found.span.words}",
        run_id=run.pk,
        run=run.name,
        first_step=found.span.first,
        last_step=found.span.last,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    row: DatasetRow | None  # None: whoever reached into the database
    position: int
    num_seen: int
    last_step: int
    num_scored: int
    num_right: int

    @property
    def percent(self) -> str:
        return f"{100 * self.num_right / self.num_scored:.3g}"


def _shown(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
    """A page of what was chosen; one query."""
    if found.chosen is None or found.span is None:
        return {}
    page: Page[Any] = Paginator(found.chosen, PROMPTS_PER_PAGE).get_page(
        form.value("page")
    )
    lines = [dict(zip(_NAMES, each.tolist(), strict=True)) for each in page]
    positions = [line["position"] for line in lines]
    stored = run.dataset_version.rows.filter(position__in=positions)
    rows = {row.position: row for row in stored}
    return {
        "page": page,
        "lines": [PromptLine(row=rows.get(each["position"]), **each) for each in lines],
        "query": form.query_of(found.span),
    }
