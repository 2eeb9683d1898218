"""Groups of a run's steps, their tokens, the reward log, data of the signal charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for, get_team
from dashboard.pages.requests import Request, read_number
from dashboard.project.downloads import pack_answer, send_packed
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.annotations import Annotations, read_annotations, suggest_tags
from dashboard.samples.forms import GroupFilterForm, GroupViewForm, RewardLogForm
from dashboard.samples.groups import (
    MAX_CELLS,
    StepPosition,
    count_signals,
    find_page,
    find_step,
    get_group,
    list_groups,
    make_cards,
    neighbours_in_step,
    pick_sample,
    read_signal_map,
    visits_around,
)
from dashboard.samples.models import Completion, GroupTokens, RuleNote
from dashboard.samples.rendering import Rendered, render_texts
from dashboard.samples.rewards import (
    GroupRank,
    find_base,
    rank_completions,
    rule_names,
    rule_weights,
    sort_ranks,
    step_recipe,
)
from dashboard.samples.rule_logs import find_notes, notes_of, read_entries
from dashboard.samples.signals.figures import READERS, SignalForm
from dashboard.samples.tokens import find_near, read_tokens, which_are_kept

# Of all texts together: longer pages are too slow for browsers.
MAX_CHARS = 4 * 2**20
MAX_SAMPLE_CHARS = 4_000  # of each text on the overview


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What the page shows of one completion."""

    rank: GroupRank
    text: str  # truncated if the group's texts are very long
    notes: list[RuleNote]
    rendered: Rendered | None  # Markdown, in the view `rendered`
    marks: Annotations

    @property
    def completion(self) -> Completion:
        return self.rank.completion


@require_safe
def group(
    request: Request, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    found = get_group(run, step, prompt)
    form = GroupViewForm.read(request.GET)
    completions = found.completions
    recipe = step_recipe(run, step)
    weights = rule_weights(run, step)
    ranks = rank_completions(found, completions, weights, recipe)
    before, after = neighbours_in_step(found)
    notes = notes_of(found)
    ordered = sort_ranks(ranks, form.value("sort"))
    view = form.value("view")
    texts = [rank.completion.text for rank in ordered]
    share = _share_of_page(texts)
    rendered = render_texts(texts) if view == "rendered" else [None] * len(texts)
    marks = read_annotations([found.pk], membership.user)
    context = {
        "team": membership.team,
        "run": run,
        "tab": "groups",
        "group": found,
        "form": form,
        "view": view,
        "color": form.value("color"),
        "is_stacked": form.value("layout") == "stacked",
        "recipe": recipe,
        "cards": [
            Card(
                rank=rank,
                text=rank.completion.text[:share],
                notes=notes.get(rank.completion.position, []),
                rendered=html,
                marks=marks.get((found.pk, rank.completion.position), Annotations()),
            )
            for rank, html in zip(ordered, rendered, strict=True)
        ],
        "marks": marks.get((found.pk, None), Annotations()),
        "are_tokens_kept": view == "tokens"
        and GroupTokens.objects.filter(group=found).exists(),
        "which_tokens": lambda: which_are_kept(run),
        "near": lambda: find_near(found),
        "team_tags": suggest_tags(membership.team),
        "can_write": membership.can_write,
        "base": find_base(ranks) if form.shows_diff else None,
        "num_notes_kept": sum(len(each) for each in notes.values()),
        "num_truncated": _num_truncated(completions),
        "num_distinct": len({c.text for c in completions}),
        "visits": visits_around(found),
        "group_before": before,
        "group_after": after,
    }
    return render(request, "samples/group.html", context)


def _share_of_page(texts: Sequence[str]) -> int | None:
    """Number of characters to show of each; None: all."""
    is_much = sum(map(len, texts)) > MAX_CHARS
    return MAX_CHARS // len(texts) if is_much else None


def _num_truncated(completions: Sequence[Completion]) -> int | None:
    """None: unknown for imported runs."""
    ends = [c.end_reason for c in completions]
    return None if "unknown" in ends else ends.count("length")


@require_safe
def group_tokens(
    request: Request, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    """Token values of the group's completions."""
    run = get_run(get_team(request, team), run_id)
    completions = read_tokens(get_group(run, step, prompt))
    if completions is None:
        return JsonResponse({"error": which_are_kept(run)}, status=404)
    return send_packed(request, pack_answer({"completions": completions}))


@require_safe
def groups(request: Request, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = GroupFilterForm.read(request.GET)
    position = find_step(run, form.value("step"))
    context = {
        "team": team_,
        "run": run,
        "tab": "groups",
        "form": form,
        "position": position,
        **(_describe(run, position, form) if position else {}),
    }
    return render(request, "samples/groups.html", context)


def _describe(
    run: Run, position: StepPosition, form: GroupFilterForm
) -> dict[str, Any]:
    page = list_groups(
        run,
        position.step,
        signal=form.value("signal"),
        sort=form.value("sort"),
        page=form.value("page"),
    )
    return {
        "page": page,
        "cards": make_cards(run, list(page)),
        "counts": count_signals(run, position.step),
        "cells": read_signal_map(run, position.step),
        "max_cells": MAX_CELLS,
        "requested": form.value("step"),
        "signal": form.value("signal"),
        "sort": form.value("sort"),
    }


@require_safe
def reward_log(request: Request, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = RewardLogForm.of_rules(request.GET, rule_names(run))
    page = find_page(find_notes(run, form), form.value("page"))
    context = {
        "team": team_,
        "run": run,
        "tab": "reward-log",
        "form": form,
        "page": page,
        "entries": read_entries(run, page.ids),
    }
    return render(request, "samples/reward_log.html", context)


@require_safe
def samples(request: Request, team: str, run_id: int) -> HttpResponse:
    """A part of the overview: ?step=&group= choose, and are in the page's address."""
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    step = read_number(request.GET.get("step", ""))
    place = read_number(request.GET.get("group", "")) or 1
    sample = pick_sample(run, step, place=place)
    shown = [("Best", sample.best), ("Worst", sample.worst)] if sample else []
    context = {
        "team": team_,
        "run": run,
        "sample": sample,
        "is_chosen": step is not None,
        "completions": [
            (
                title,
                completion,
                completion.text[:MAX_SAMPLE_CHARS],
                zip(sample.group.rule_names, completion.rule_scores, strict=False),
            )
            for title, completion in shown
            if sample and completion
        ],
    }
    return render(request, "samples/step_sample.html", context)


# Data of the signal charts on the page of all metrics.


@require_safe
def signals(request: Request, team: str, run_id: int, chart: str) -> HttpResponse:
    """?first_step=&last_step= zoom in; ?rows= sorts the map's rows."""
    run = get_run(get_team(request, team), run_id)
    if chart not in READERS:
        raise Http404(f"Unknown signal chart: {chart!r}.")
    form = SignalForm.read(request.GET)
    if form.errors:
        return JsonResponse({"errors": form.errors}, status=400)
    shown = form.value("rows"), *form.steps.values()
    key = (run.pk, run.attempt, run.last_step, chart, *shown)
    query = _Query(key=key, run=run, chart=chart, form=form)
    # Rollups of an ended run may still be filled, so do not cache them.
    packed = _read(query) if run.has_ended else _read_once(query)
    return send_packed(request, packed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Query:
    """Equal for all viewers of a running run until its next step."""

    key: tuple[Any, ...]
    run: Run = field(compare=False)
    chart: str = field(compare=False)
    form: SignalForm = field(compare=False)


def _read(query: _Query) -> bytes:
    # A map of 12,800 cells is half a megabyte that packs into a sixth of it.
    return pack_answer(READERS[query.chart](query.run, query.form))


_read_once = lru_cache(maxsize=64)(_read)
