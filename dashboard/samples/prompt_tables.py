"""The prompts of a run that a filter chooses, and the rows that they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.datasets.selections import source_of
from dashboard.runs.models import Run
from dashboard.samples.pass_shares import (
    Counts,
    Tallies,
    count,
    select,
    select_kind,
    sort,
    tally,
)
from dashboard.samples.prompt_forms import PromptFilterForm
from dashboard.samples.prompt_visits import Span, Visits, find_span, read_visits
from dashboard.samples.recipes import why_nothing_is_right


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    span: Span | None = None
    visits: Visits | None = None
    counts: Counts | None = None
    chosen: Tallies | None = None  # None: there is nothing to choose
    problem: str = ""


def find_prompts(run: Run, form: PromptFilterForm) -> Found:
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


def source_of_prompts(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
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
