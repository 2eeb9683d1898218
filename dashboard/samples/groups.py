from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from django.core.paginator import Page, Paginator
from django.db.models import Count, Exists, F, OrderBy, OuterRef, Prefetch, Q, QuerySet

from dashboard.runs.models import Run
from dashboard.samples.models import Group, GroupCompletions, GroupTokens
from dashboard.samples.prompt_lines import read_snippets
from dashboard.samples.recipes import reward_bounds
from dashboard.samples.strips import Strip, draw_strip, reward_scale

GROUPS_PER_PAGE = 48
MAX_CELLS = 1_024  # of the signal map

ORDERS: dict[str, list[str | OrderBy]] = {
    "prompt": ["prompt_index"],
    "mean": [F("reward_mean").asc(nulls_last=True), "prompt_index"],
    "-mean": [F("reward_mean").desc(nulls_last=True), "prompt_index"],
    "spread": [F("reward_std").asc(nulls_last=True), "prompt_index"],
    "-spread": [F("reward_std").desc(nulls_last=True), "prompt_index"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCard:
    group: Group
    snippet: str
    strip: Strip
    num_completions: int
    num_truncated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalCounts:
    """How many groups of a step carry each signal."""

    by_signal: dict[str, int]
    num_teaching: int  # mixed, and in the batch
    num_left_out: int  # by dynamic sampling

    @property
    def total(self) -> int:
        return sum(self.by_signal.values())


def step_groups(run: Run, step: int) -> QuerySet[Group]:
    return Group.objects.current().filter(run=run, step=step)


def count_signals(run: Run, step: int) -> SignalCounts:
    rows = step_groups(run, step).order_by().values_list("signal")
    left_out = Count("id", filter=Q(is_trained=False))
    counted = list(rows.annotate(n=Count("id"), left_out=left_out).order_by("-n"))
    return SignalCounts(
        by_signal={signal: count for signal, count, _ in counted},
        num_teaching=sum(n - out for signal, n, out in counted if signal == "mixed"),
        num_left_out=sum(out for _, _, out in counted),
    )


def read_signal_map(run: Run, step: int) -> list[dict[str, object]]:
    """Every group of the step, in few words: (prompt_index, signal, mean, spread)."""
    cells = step_groups(run, step).order_by("prompt_index")
    names = ("prompt_index", "signal", "reward_mean", "reward_std")
    return list(cells.values(*names)[:MAX_CELLS])


def list_groups(
    run: Run, step: int, *, signal: str | None, sort: str, page: int
) -> Page[Group]:
    groups = step_groups(run, step).order_by(*ORDERS[sort])
    if signal:
        groups = groups.filter(signal=signal)
    kept = GroupTokens.objects.filter(group=OuterRef("pk"))
    found = groups.annotate(has_tokens=Exists(kept)).prefetch_related(_rewards())
    return cast("Page[Group]", Paginator(found, GROUPS_PER_PAGE).get_page(page))


def _rewards() -> Prefetch[str, QuerySet[GroupCompletions], str]:
    wanted = GroupCompletions.objects.only("rewards", "end_reasons")
    return Prefetch("packed_completions", wanted)


def _packed(group: Group) -> GroupCompletions:
    """Nothing where retention has deleted them."""
    try:
        return group.packed_completions
    except GroupCompletions.DoesNotExist:
        return GroupCompletions(group=group, rewards=[], end_reasons=[])


def make_cards(run: Run, groups: Sequence[Group]) -> list[GroupCard]:
    packed = [_packed(group) for group in groups]
    rewards = [reward for each in packed for reward in each.rewards]
    step = groups[0].step if groups else 0
    scale = reward_scale(reward_bounds(run, step), rewards)
    snippets = read_snippets(run, groups)
    cards = []
    for group, each in zip(groups, packed, strict=True):
        cut = [reason == "length" for reason in each.end_reasons]
        cards.append(
            GroupCard(
                group=group,
                snippet=snippets[group.prompt_index],
                strip=draw_strip(each.rewards, cut, scale),
                num_completions=len(cut),
                num_truncated=sum(cut),
            )
        )
    return cards
