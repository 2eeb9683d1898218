"""Groups of a run's steps, their tokens, the reward log, data of the signal charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from django import forms
from django.core.paginator import Page
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from dashboard.accounts.access import (
    get_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.templatetags.numbers import sig3
from dashboard.analysis.audit.jumps import explain
from dashboard.analysis.mismatch.counterfactuals import (
    CANDIDATES,
    ICEPOP,
    weigh_group,
)
from dashboard.completions.annotations import (
    Annotations,
    Key,
    read_annotations,
    suggest_tags,
)
from dashboard.completions.forms import (
    GROUP_LAYOUTS,
    GROUP_SORTS,
    GROUP_VIEWS,
    SIGNALS,
    GroupFilterForm,
    GroupViewForm,
)
from dashboard.completions.groups import (
    GroupCard,
    SignalCounts,
    StepPosition,
    VisitsAround,
    count_signals,
    find_page,
    find_step,
    get_group,
    list_groups,
    pick_sample,
    visits_around,
)
from dashboard.completions.models import Completion, Group, GroupTokens, RuleNote
from dashboard.completions.prompts import read_question
from dashboard.completions.rendering import Rendered, render_texts
from dashboard.completions.rewards import (
    GroupRank,
    correct_if,
    count_right,
    find_base,
    merge_equal,
    rank_completions,
    rule_names,
    rule_weights,
    sort_ranks,
    step_recipe,
)
from dashboard.completions.rule_logs import (
    RewardLogForm,
    find_notes,
    notes_of,
    read_entries,
)
from dashboard.completions.signals.figures import READERS, SignalForm
from dashboard.completions.sparklines import signal_words
from dashboard.completions.tokens import find_near, read_tokens, which_are_kept
from dashboard.completions.turns import Block, blocks_of
from dashboard.pages.requests import Request, read_number
from dashboard.project.database import FixedQuery
from dashboard.runs.models import Run
from dashboard.runs.queries import Keyed, as_of, get_run, if_ended
from dashboard.web.downloads import pack_answer, send_packed
from dashboard.web.fragments import render_once

# Of all texts together: longer pages are too slow for browsers.
MAX_CHARS = 4 * 2**20
MAX_SAMPLE_CHARS = 4_000  # of each text on the overview
CURRENT = SafeString(' aria-current="page"')
MAX_RULES = 5  # as columns; others are shown with an open completion


class TokenViewForm(GroupViewForm):
    """The same, and the correction that colours tokens by their weights."""

    defaults: ClassVar[dict[str, Any]] = {
        **GroupViewForm.defaults,
        "correction": ICEPOP,
    }

    correction = forms.ChoiceField(
        required=False,
        label="Correction",
        choices=[(each.key, each.title) for each in CANDIDATES],
    )

    @property
    def shows_weights(self) -> bool:
        return self.wants_tokens and self.color_shown == "weight"

    @property
    def tokens_query(self) -> str:
        return f"?correction={self.value('correction')}" * self.shows_weights

    @property
    def selects(self) -> list[tuple[forms.BoundField, str]]:
        own = [(self["correction"], self.value("correction"))] * self.shows_weights
        return super().selects[:1] + own + super().selects[1:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A completion as the page shows it, with others that are equal to it."""

    rank: GroupRank
    alike: list[int]  # positions of equal completions, which have no card
    text: str  # truncated if the group's texts are very long
    notes: list[RuleNote]
    rendered: Rendered | None  # Markdown, in the view `rendered`
    blocks: list[Block]  # of an episode
    marks: Annotations

    @property
    def completion(self) -> Completion:
        return self.rank.completion

    @property
    def times(self) -> int:
        return 1 + len(self.alike)


@require_safe
@look_up(get_membership, run=get_run)
def groups(request: Request, membership: Membership, run: Run) -> HttpResponse:
    """Show a step's groups, the first of them open."""
    form = GroupFilterForm.read(request.GET)
    view = TokenViewForm.of_step(request.GET)
    requested = form.value("step")
    step_page = _find_step(run, requested, view, page=form.value("page"))
    shown = {
        "view": view,
        "requested": requested,
        "is_following": requested is None and not run.has_ended,
    }
    first = step_page.cards[0].group if step_page and step_page.cards else None
    # The page of an ended run often needs no texts again.
    group_ = first and get_group(
        run, first.step, first.prompt_index, with_texts=not run.has_ended
    )
    return _render_reader(request, membership, run, step_page, group_, shown)


@require_safe
@look_up(get_membership, run=get_run)
def group(
    request: Request, membership: Membership, run: Run, step: int, prompt: int
) -> HttpResponse:
    """Show the page with one group open; only that group for a link of the list."""
    group_ = get_group(run, step, prompt, with_texts=not run.has_ended)
    view = TokenViewForm.read(request.GET)
    shown = {"view": view, "is_open": True, "requested": step, "step": step}
    if _is_for(request, "group-pane"):
        return _render_reader(request, membership, run, None, group_, shown, "group")
    step_page = _find_step(run, step, view, at=prompt)
    return _render_reader(request, membership, run, step_page, group_, shown)


def _is_for(request: Request, target: str) -> bool:
    """Tell whether this part of the page is requested."""
    is_restored = request.htmx.history_restore_request
    return request.htmx.target == target and not is_restored


def _render_reader(
    request: Request,
    membership: Membership,
    run: Run,
    step_page: _StepPage | None,
    group_: Group | None,
    shown: dict[str, Any],
    part: str = "reader",
) -> HttpResponse:
    is_part = part == "group" or _is_for(request, "reader")
    page = {
        "team": membership.team,
        "run": run,
        "tab": "groups",
        "is_part": is_part,
        "group": group_,
        "position": step_page and step_page.position,
        "can_write": membership.can_write,
        **shown,
    }
    marks = read_annotations([group_.pk], membership.user) if group_ else {}

    def describe() -> dict[str, Any]:
        """Describe the step and the group, with all that others do not change."""
        return {
            **page,
            **(
                _describe_step(step_page, shown["view"])
                if step_page
                else {"newest_step": 0}
            ),
            **(
                _describe_group(membership, run, group_, shown["view"], marks)
                if group_
                else {}
            ),
        }

    key = if_ended(run, is_part, group_ and group_.pk, membership.can_write)
    html = render_once(
        request, f"completions/{part}.html", None if marks else key, describe
    )
    if is_part:
        return _vary(HttpResponse(html))
    page |= {
        "reader": html,
        "team_tags": suggest_tags(membership.team) if membership.can_write else [],
    }
    return _vary(render(request, "completions/groups.html", page))


def _vary(response: HttpResponse) -> HttpResponse:
    """Mark a response that may be a part of the page at the same address."""
    patch_vary_headers(response, ["HX-Target"])
    return response


@dataclass(frozen=True, kw_only=True, slots=True)
class _StepPage:
    position: StepPosition
    counts: SignalCounts
    page: Page[int]
    cards: list[GroupCard]


def _find_step(
    run: Run,
    requested: int | None,
    view: GroupViewForm,
    *,
    page: int = 1,
    at: int | None = None,
) -> _StepPage | None:
    """Find the requested step or the nearest; `at`: this one, on the page of a prompt.

    The groups of an ended run do not change until it is extended.
    """
    read = _read_step_once if run.has_ended else _read_step
    return read(
        as_of(run, run.seq, run.completions_deleted_at),
        requested,
        signal=view.value("signal"),
        order=view.value("order"),
        page=page,
        at=at,
    )


def _read_step(
    keyed: Keyed[Run],
    requested: int | None,
    *,
    signal: str,
    order: str,
    page: int,
    at: int | None,
) -> _StepPage | None:
    run = keyed.value
    position = find_step(run, requested, is_exact=at is not None)
    if position is None:
        return None
    prompts, cards = list_groups(
        run, position.step, signal=signal, sort=order, page=page, at=at
    )
    counts = count_signals(run, position.step)
    return _StepPage(position=position, counts=counts, page=prompts, cards=cards)


_read_step_once = lru_cache(maxsize=32)(_read_step)


def _describe_step(step_page: _StepPage, view: GroupViewForm) -> dict[str, Any]:
    position, counts, signal = (
        step_page.position,
        step_page.counts,
        view.value("signal"),
    )
    step = position.step
    return {
        "position": position,
        "step": step,
        "newest_step": position.last,
        "counts": counts,
        "chips": [
            (name, num, name == signal, view.query_of_step(step, signal=name))
            for name, num in (
                ("", counts.total),
                *((name, counts.by_signal.get(name, 0)) for name, _ in SIGNALS),
            )
            if num or name in ("", signal)
        ],
        "moves": [
            (mark, label, key, to, view.query_of_step(to))
            for mark, label, key, to in (
                ("⇤", "First step with groups", "{", position.first),
                ("◀", "Previous step with groups", "[", position.previous),
                ("▶", "Next step with groups", "]", position.next),
                ("⇥", "Newest step with groups", "}", position.last),
            )
        ],
        "orders": [
            (words, value == view.value("order"), view.query_of_step(step, order=value))
            for value, words in GROUP_SORTS
        ],
        "this_query": view.query_of_step(step),
        "newest_query": view.query_of_step(None),
        "page": step_page.page,
        "groups": step_page.cards,
    }


def _describe_group(
    membership: Membership,
    run: Run,
    group_: Group,
    view: GroupViewForm,
    marks: Mapping[Key, Annotations],
) -> dict[str, Any]:
    completions = group_.completions
    recipe = step_recipe(run, group_.step)
    weights = rule_weights(run, group_.step)
    ranks = rank_completions(group_, completions, weights, recipe)
    notes = notes_of(group_)
    marked = {position for pk, position in marks if pk == group_.pk}
    form = view.value("view")
    are_tokens_kept = _tokens_of.first(group_.pk) is not None
    merged = merge_equal(
        sort_ranks(ranks, view.value("sort")),
        # Each has values of its own, or its own notes and annotations.
        separate={completion.position for completion in completions}
        if form == "tokens"
        else {*notes, *(position for position in marked if position is not None)},
    )
    texts = [rank.completion.text for rank, _ in merged]
    is_much = sum(map(len, texts)) > MAX_CHARS
    share = MAX_CHARS // len(texts) if is_much else None
    blocks = [
        blocks_of(c, share if c.turns else None, is_whole=True)
        for c in (rank.completion for rank, _ in merged)
    ]
    if form == "rendered":
        blocks = _render(blocks)
    groups_url = reverse("groups", args=[membership.team.slug, run.pk])
    visits = visits_around(group_)
    ends = [completion.end_reason for completion in completions]
    return {
        "question": read_question(run, group_),
        "recipe": recipe,
        "cards": [
            Card(
                rank=rank,
                alike=alike,
                text=rank.completion.text[:share],
                notes=notes.get(rank.completion.position, []),
                rendered=turns[0].rendered,
                blocks=turns if rank.completion.turns else [],
                marks=marks.get((group_.pk, rank.completion.position), Annotations()),
            )
            for (rank, alike), turns in zip(merged, blocks, strict=True)
        ],
        "num_rules": min(len(group_.rule_names), MAX_RULES),
        "rules": group_.rule_names[:MAX_RULES],
        "rules_left": group_.rule_names[MAX_RULES:],
        "marks": marks.get((group_.pk, None), Annotations()),
        "are_tokens_kept": are_tokens_kept,
        "shows_tokens": form == "tokens" and are_tokens_kept,
        "which_tokens": lambda: which_are_kept(run),
        "near": lambda: find_near(group_),
        "base": find_base(ranks) if view.shows_diff else None,
        "num_notes_kept": sum(map(len, notes.values())),
        "num_completions": len(completions),
        "correct_if": correct_if(run, group_.step),
        "num_right": count_right(run, group_.step, completions),
        # Unknown for imported runs.
        "num_truncated": None if "unknown" in ends else ends.count("length"),
        "num_distinct": len({c.text for c in completions}),
        "visits": visits,
        "visit_links": _link_visits(visits, group_, groups_url, view.query),
        "views": _choices(view, "view", GROUP_VIEWS),
        "layouts": _choices(view, "layout", GROUP_LAYOUTS),
        "heads": _heads(view),
        "diff_query": view.query_with(diff=not view.value("diff")),
        "group_query": view.query,
        "groups_url": groups_url,
        "step_query": view.query_of_step(group_.step),
    }


def _render(blocks: Sequence[Sequence[Block]]) -> list[list[Block]]:
    """Render the turns of the policy."""
    texts = [block.text for turns in blocks for block in turns if block.is_policy]
    rendered = iter(render_texts(texts))
    return [
        [replace(b, rendered=next(rendered)) if b.is_policy else b for b in turns]
        for turns in blocks
    ]


_tokens_of = FixedQuery(
    lambda group: GroupTokens.objects.filter(group=group).values_list("pk", flat=True)
)


def _link_visits(
    visits: VisitsAround, group: Group, groups_url: str, query: str
) -> SafeString:
    """Written here: in the template they were a fifth of the page's time."""
    return format_html_join(
        "\n",
        '<li><a class="signal-cell" data-signal="{signal}" href="{url}" '
        'hx-get="{url}"{current} title="Step {step}: {words}, mean {mean}">'
        '<span class="visually-hidden">{words} at step </span>{step}</a></li>',
        (
            {
                "signal": visit.signal,
                "url": f"{groups_url}{visit.step}/{group.prompt_index}/{query}",
                "current": CURRENT if visit.step == group.step else "",
                "step": visit.step,
                "words": signal_words(visit.signal),
                "mean": sig3(visit.reward_mean),
            }
            for visit in visits.visits
        ),
    )


def _choices(
    view: GroupViewForm, name: str, choices: list[tuple[str, str]]
) -> list[tuple[str, str, bool, str]]:
    chosen = view.value(name)
    return [
        (value, words, value == chosen, view.query_with(**{name: value}))
        for value, words in choices
    ]


def _heads(view: GroupViewForm) -> list[dict[str, str]]:
    """List the columns that sort: high first, then low first."""
    chosen = view.value("sort")
    heads = []
    for name, title, first, then in (
        ("position", "#", "position", "position"),
        ("reward", "Reward", "-reward", "reward"),
        ("length", "Tokens", "-length", "length"),
    ):
        is_up = chosen == name
        is_down = chosen == first and first != name
        heads.append(
            {
                "name": name,
                "title": title,
                "direction": "ascending" if is_up else "descending" * is_down,
                "query": view.query_with(sort=then if is_down else first),
            }
        )
    return heads


@require_safe
@look_up(get_membership, run=get_run)
def group_tokens(request: Request, run: Run, step: int, prompt: int) -> HttpResponse:
    """Token values of the group's completions; ?correction= gives them its weights."""
    group_ = get_group(run, step, prompt)
    completions = read_tokens(group_)
    if completions is None:
        return JsonResponse({"error": which_are_kept(run)}, status=404)
    correction = TokenViewForm.read(request.GET).value("correction")
    for completion, values in zip(
        completions, weigh_group(run, group_, correction), strict=False
    ):
        completion |= values
    return send_packed(request, pack_answer({"completions": completions}))


@require_safe
@look_up(get_membership, run=get_run)
def reward_log(request: Request, team: Team, run: Run) -> HttpResponse:
    form = RewardLogForm.of_rules(request.GET, rule_names(run))
    page = find_page(find_notes(run, form), form.value("page"))
    context = {
        "team": team,
        "run": run,
        "tab": "reward-log",
        "form": form,
        "chips": form.chips(request.GET),
        "page": page,
        "entries": read_entries(run, page.ids),
    }
    return render(request, "completions/reward_log.html", context)


@require_safe
@look_up(get_membership, run=get_run)
def samples(request: Request, team: Team, run: Run) -> HttpResponse:
    """Show a part of the overview; ?step=&group= are in the page's address."""
    step = read_number(request.GET.get("step", ""))
    place = read_number(request.GET.get("group", "")) or 1
    sample = pick_sample(run, step, place=place)
    completions = [("Best", sample.best), ("Worst", sample.worst)] if sample else []
    context = {
        "team": team,
        "run": run,
        "sample": sample,
        "is_chosen": step is not None,
        "around": explain(run, step) if step else None,
        "completions": [
            (
                title,
                completion,
                completion.text[:MAX_SAMPLE_CHARS],
                blocks_of(completion, MAX_SAMPLE_CHARS),
            )
            for title, completion in completions
            if completion
        ],
    }
    return render(request, "completions/step_sample.html", context)


# Data of the signal charts on the page of all metrics.


@require_safe
@look_up(get_membership, run=get_run)
def signals(request: Request, run: Run, chart: str) -> HttpResponse:
    """?first_step=&last_step= zoom in; ?rows= sorts the map's rows."""
    if chart not in READERS:
        raise Http404(f"Unknown signal chart: {chart!r}.")
    form = SignalForm.read(request.GET)
    if form.errors:
        return JsonResponse({"errors": form.errors}, status=400)
    chosen = form.value("rows"), *form.steps.values()
    # All viewers of a running run get the same until its next step. Rollups of an ended
    # run may still be filled, so do not cache them.
    read = _read if run.has_ended else _read_once
    packed = read(as_of(run, run.last_step), chart, Keyed(chosen, form))
    return send_packed(request, packed)


def _read(run: Keyed[Run], chart: str, form: Keyed[SignalForm]) -> bytes:
    # A map of 12,800 cells is half a megabyte that packs into a sixth of it.
    return pack_answer(READERS[chart](run.value, form.value))


_read_once = lru_cache(maxsize=64)(_read)
