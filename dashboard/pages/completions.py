"""A run's completions: search, annotations, exports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team, User
from dashboard.accounts.templatetags.numbers import sig3
from dashboard.completions.annotations import (
    EXPORTS,
    Annotations,
    add_tag,
    find_target,
    judge,
    read_annotations,
    remove_tag,
    suggest_tags,
)
from dashboard.completions.flags import ENDS, EPISODE_ENDS
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.groups import get_group
from dashboard.completions.models import Completion
from dashboard.completions.prompts import read_snippets_of
from dashboard.completions.rewards import outcomes_of, why_never_right
from dashboard.completions.search.annotated import Label, read_labels
from dashboard.completions.search.blocks import BlocksChanged, made_blocks
from dashboard.completions.search.columns import compares_answers
from dashboard.completions.search.facets import Facet, Facets
from dashboard.completions.search.results import TEXT_SECONDS, Found, find
from dashboard.completions.search.text import excerpt
from dashboard.completions.turns import messages_of
from dashboard.pages.comments import COMMENT_ACTIONS, Action, act
from dashboard.pages.requests import Request
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run, if_ended
from dashboard.web.downloads import attach
from dashboard.web.fragments import render_once

ATTEMPTS = 3  # of a search while its blocks are replaced
END_WORDS = {"length": "truncated", "stop": "", **EPISODE_ENDS}
MAX_RULES = 4  # of a result; the group shows all
ACTIONS: dict[str, Action] = {
    "judge": lambda user, target, value: judge(
        user, target, is_up={"good": True, "bad": False}.get(value)
    ),
    "untag": remove_tag,
    "tag": add_tag,
    **COMMENT_ACTIONS,
}


@require_POST
@look_up(get_writing_membership, run=get_run)
def group_marks(
    request: Request,
    membership: Membership,
    team: Team,
    run: Run,
    step: int,
    prompt: int,
) -> HttpResponse:
    group = get_group(run, step, prompt)
    target = find_target(group, request.POST.get("position", ""))
    outcome = act(request, ACTIONS, target)
    if getattr(request, "htmx", False):
        marks = read_annotations([group.pk], membership.user)
        context: dict[str, Any] = {
            "team": team,
            "run": run,
            "group": group,
            "position": target.position,
            "key": target.key,
            "marks": marks.get((group.pk, target.position), Annotations()),
            "can_write": membership.can_write,
            **outcome,
        }
        return render(request, "completions/marks.html", context)
    if outcome["problem"]:
        messages.error(request, outcome["problem"])
    at = "#group-marks" if target.position is None else f"#completion-{target.position}"
    return redirect(reverse("group", args=[team.slug, run.pk, step, prompt]) + at)


@require_safe
@look_up(get_membership, run=get_run)
def run_annotations(request: Request, run: Run, export: str) -> HttpResponseBase:
    if export not in EXPORTS:
        raise Http404(f"Unknown export: {export!r}.")
    return attach(
        (line.encode() for line in EXPORTS[export](run)),
        filename=f"{run.name}-{export}.jsonl",
        content_type="application/jsonl",
    )


@require_safe
@look_up(get_membership, run=get_run)
def completions(
    request: Request, membership: Membership, team: Team, run: Run
) -> HttpResponse:
    form = CompletionFilterForm.of_run(request.GET, run)
    is_mine = form.value("by") == "me"
    all_marks = read_labels(run, by=membership.user if is_mine else None)
    # The search for a text ends after some time, others find the same until a worker
    # makes other blocks.
    key = (
        None
        if all_marks or is_mine or form.value("text")
        else if_ended(run, *made_blocks(run))
    )

    def describe() -> dict[str, Any]:
        matches, facets = _find(request, run, form, membership.user, all_marks)
        groups = {c.group_id for c in matches.completions}
        marks = read_annotations(groups, membership.user) if key is None else {}
        snippets = read_snippets_of(run, groups)
        chips = form.chips(request.GET)
        # Unusual completions and truncated ones, with their numbers.
        by_title = {facet.title: facet.values for facet in facets}
        cut = [v for v in by_title.get("Finish", []) if v.label == ENDS["length"].label]
        return {
            "team": team,
            "run": run,
            "tab": "completions",
            "form": form,
            "page": matches,
            "completions": [
                _line(
                    c,
                    snippet=snippets.get(c.group.prompt_index, ""),
                    pieces=excerpt(messages_of(c), matches.pattern),
                    marks=marks.get((c.group_id, c.position)),
                    of_group=marks.get((c.group_id, None)),
                )
                for c in matches.completions
            ],
            "chips": chips,
            "last_chip": next((chip for chip in reversed(chips) if chip.words), None),
            "facets": facets,
            "presets": by_title.get("Unusual", []) + cut,
            "text_seconds": TEXT_SECONDS,
            "has_answer_rules": compares_answers(run),
            "why_unknown": why_never_right(run),
            "has_marks": bool(all_marks) or is_mine,
        }

    context = {
        "team": team,
        "run": run,
        "tab": "completions",
        "found": render_once(request, "completions/search.html", key, describe),
        "team_tags": suggest_tags(team),
    }
    return render(request, "completions/completions.html", context)


def _line(
    c: Completion,
    *,
    snippet: str,
    pieces: list[tuple[str, bool]],
    marks: Annotations | None,
    of_group: Annotations | None,
) -> dict[str, Any]:
    """Describe a completion for the list; written here, since a page has fifty."""
    place = f"{c.group.step}/{c.group.prompt_index}/"
    scores = zip(c.group.rule_names, c.rule_scores, strict=False)
    length = "length unknown" if c.num_tokens is None else f"{c.num_tokens:,} tokens"
    return {
        "place": f"{place}{c.position}",
        "link": f"{place}#completion-{c.position}",
        "snippet": snippet or "Open the group",
        "reward": "no score" if c.reward is None else sig3(c.reward),
        "rules": [(name, sig3(score)) for name, score in islice(scores, MAX_RULES)],
        "step": f"{c.group.step:,}",
        "length": length,
        "end": END_WORDS.get(c.end_reason, "end unknown"),
        "pieces": pieces,
        "marks": marks,
        "of_group": of_group,
    }


def _find(
    request: Request,
    run: Run,
    form: CompletionFilterForm,
    reader: User,
    marks: Sequence[Label],
) -> tuple[Found, list[Facet]]:
    for attempt in range(ATTEMPTS):
        try:
            matches = find(run, form, reader)
            facets = Facets(matches.selections, request.GET, outcomes_of(run))
            return matches, facets.all(marks)
        except BlocksChanged:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt has raised")
