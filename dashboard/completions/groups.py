"""Groups of a step, one group and its neighbours, all completions of a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from django.core.paginator import Page, Paginator
from django.db.models import (
    Count,
    Exists,
    F,
    OrderBy,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
)
from django.utils.safestring import SafeString

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.completions.models import (
    Completion,
    Group,
    GroupCompletions,
    GroupTokens,
)
from dashboard.completions.prompt_visits import Visits
from dashboard.completions.prompts import read_snippets_of
from dashboard.completions.rewards import reward_bounds
from dashboard.completions.sparklines import draw_sparkline, reward_scale
from dashboard.project.database import FixedQuery, fetch_all
from dashboard.project.errors import or_404
from dashboard.runs.models import Run

GROUPS_PER_PAGE = 48

MAX_VISITS = 10  # before a group, and after it
PAGE_SIZE = 50
COMPLETIONS_PER_PAGE = 20

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
    strip: SafeString
    num_completions: int
    num_truncated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalCounts:
    """Number of groups of a step by signal."""

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


def list_groups(
    run: Run, step: int, *, signal: str, sort: str, page: int, at: int | None
) -> tuple[Page[int], list[GroupCard]]:
    """List the page of this number, or the one with prompt `at`; four queries."""
    groups = step_groups(run, step).order_by(*ORDERS[sort])
    if signal:
        groups = groups.filter(signal=signal)
    prompts = list(groups.values_list("prompt_index", flat=True))
    if at in prompts:
        page = prompts.index(at) // GROUPS_PER_PAGE + 1
    prompt_page = Paginator(prompts, GROUPS_PER_PAGE).get_page(page)
    tokens = GroupTokens.objects.filter(group=OuterRef("pk"))
    groups_ = groups.filter(prompt_index__in=list(prompt_page)).defer(
        "answer", "prompt"
    )
    columns = GroupCompletions.objects.only("rewards", "end_reasons")
    return prompt_page, make_cards(
        run,
        groups_.annotate(has_tokens=Exists(tokens)).prefetch_related(
            Prefetch("packed_completions", columns)
        ),
    )


def _packed(group: Group) -> GroupCompletions:
    """Empty after retention deleted them."""
    try:
        return group.packed_completions
    except GroupCompletions.DoesNotExist:
        return GroupCompletions(group=group, rewards=[], end_reasons=[])


def make_cards(run: Run, groups: Iterable[Group]) -> list[GroupCard]:
    groups = list(groups)
    packed = [_packed(group) for group in groups]
    rewards = [reward for completions in packed for reward in completions.rewards]
    scale = reward_scale(reward_bounds(run, groups[0].step if groups else 0), rewards)
    snippets = read_snippets_of(run, [group.pk for group in groups])
    cards = []
    for group, completions in zip(groups, packed, strict=True):
        cut = [reason == "length" for reason in completions.end_reasons]
        cards.append(
            GroupCard(
                group=group,
                snippet=snippets[group.prompt_index],
                strip=draw_sparkline(completions.rewards, cut, scale).svg(
                    f"{len(cut)} rewards, mean {sig3(group.reward_mean)}"
                ),
                num_completions=len(cut),
                num_truncated=sum(cut),
            )
        )
    return cards


MAX_FOUND = 10_000  # of a search; the page asks to narrow it if there are more


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPage:
    number: int
    num_pages: int
    first: int  # 1 …, of the found
    num_shown: int
    num_found: int
    is_cut: bool  # more than num_found match
    ids: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.first + self.num_shown - 1


def find_page(found: QuerySet[Any], number: int) -> FoundPage:
    """Find the page of this number, or the last one. One query.

    Reads all IDs in one pass: a separate count would search a million texts twice.
    """
    ids = list(found.values_list("id", flat=True)[: MAX_FOUND + 1])
    is_cut = len(ids) > MAX_FOUND
    del ids[MAX_FOUND:]
    num_pages = max(1, -(-len(ids) // PAGE_SIZE))
    number = min(number, num_pages)
    start = (number - 1) * PAGE_SIZE
    page_ids = ids[start : start + PAGE_SIZE]
    return FoundPage(
        ids=page_ids,
        num_shown=len(page_ids),
        number=number,
        num_pages=num_pages,
        first=start + 1 if ids else 0,
        num_found=len(ids),
        is_cut=is_cut,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPosition:
    """A step with groups, and its neighbours with groups."""

    step: int
    first: int
    last: int
    previous: int | None
    next: int | None


def find_step(
    run: Run, requested: int | None, *, is_exact: bool = False
) -> StepPosition | None:
    """Find the requested step, or the nearest with groups; None: the newest. Two
    queries.

    is_exact: also if all groups of the step are superseded.
    """
    first, last, below, above = _ends.first(run.pk, requested or 0) or (None,) * 4
    if first is None or last is None:
        return None
    step = last if requested is None else _nearest(requested, below, above)
    if is_exact and requested is not None:
        step = requested
    previous, after = _beside.first(run.pk, step) or (None, None)
    return StepPosition(
        step=step, first=first, last=last, previous=previous, next=after
    )


def _nearest(requested: int, *around: int | None) -> int:
    return min(
        [step for step in around if step is not None],
        key=lambda step: abs(step - requested),
    )


@FixedQuery
def _ends(run: int, step: int) -> QuerySet[Run, tuple[int | None, ...]]:
    """Find the first step with groups, the last, and the nearest on both sides of a
    step.
    """
    groups = Group.objects.current().filter(run=OuterRef("pk"))
    return _first_steps(
        run,
        groups.order_by("step"),
        groups.order_by("-step"),
        groups.filter(step__lte=step).order_by("-step"),
        groups.filter(step__gte=step).order_by("step"),
    )


@FixedQuery
def _beside(run: int, step: int) -> QuerySet[Run, tuple[int | None, ...]]:
    groups = Group.objects.current().filter(run=OuterRef("pk"))
    return _first_steps(
        run,
        groups.filter(step__lt=step).order_by("-step"),
        groups.filter(step__gt=step).order_by("step"),
    )


def _first_steps(
    run: int, *groups: QuerySet[Group]
) -> QuerySet[Run, tuple[int | None, ...]]:
    """Find the first step of each query; reads only the end of the index."""
    steps = {f"at{i}": Subquery(g.values("step")[:1]) for i, g in enumerate(groups)}
    return Run.objects.filter(pk=run).annotate(**steps).values_list(*steps)


class Visit(NamedTuple):
    step: int
    signal: str
    reward_mean: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitsAround:
    """The steps at which a run sampled one prompt, oldest first."""

    visits: list[Visit]
    is_cut: bool
    previous: Visit | None
    next: Visit | None


def get_group(
    run: Run, step: int, prompt_index: int, *, with_texts: bool = False
) -> Group:
    """Return the current group, or 404.

    Shared links stay valid after a resume: until the run reaches the step again, this
    is the superseded group.
    """
    query = _group_with_texts if with_texts else _group
    group = query.first(run.pk, step, prompt_index)
    return or_404(group, f"Run {run.pk} has no prompt {prompt_index} at step {step}.")


def _groups_at(run: int, step: int, prompt_index: int) -> QuerySet[Group]:
    """Order the current group first."""
    return Group.objects.filter(run=run, step=step, prompt_index=prompt_index).order_by(
        F("superseded_by").desc(nulls_first=True), "-attempt"
    )


_group = FixedQuery(lambda *place: _groups_at(*place)[:1])
_group_with_texts = FixedQuery(
    lambda *place: _groups_at(*place).select_related("packed_completions")[:1]
)


AROUND = """
    (SELECT step, signal, reward_mean FROM samples_group
     WHERE run_id = %(run)s AND prompt_index = %(prompt)s AND superseded_by IS NULL
     AND step < %(step)s ORDER BY step DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT step, signal, reward_mean FROM samples_group
     WHERE run_id = %(run)s AND prompt_index = %(prompt)s AND superseded_by IS NULL
     AND step > %(step)s ORDER BY step LIMIT %(limit)s)"""


def visits_around(group: Group) -> VisitsAround:
    """Read the visits before and after a group. One query."""
    place = {"run": group.run_id, "prompt": group.prompt_index, "step": group.step}
    visits = sorted(
        (
            Visit(*row)
            for row in fetch_all(
                AROUND, {**place, "limit": MAX_VISITS + 1}, is_prepared=True
            )
        ),
        key=lambda visit: visit.step,
    )
    before = [visit for visit in visits if visit.step < group.step]
    after = [visit for visit in visits if visit.step > group.step]
    this = Visit(group.step, group.signal, group.reward_mean)
    return VisitsAround(
        visits=[*before[-MAX_VISITS:], this, *after[:MAX_VISITS]],
        is_cut=len(before) > MAX_VISITS or len(after) > MAX_VISITS,
        previous=before[-1] if before else None,
        next=after[0] if after else None,
    )


def read_completions_of(
    run: Run, prompt: int, visits: Visits, *, number: int
) -> tuple[FoundPage, list[Completion]]:
    """Read the page of this number, or the last one. One query.

    The visits have the numbers of completions, so only groups of the page are read.
    """
    newest = visits[::-1]
    ends = np.cumsum(newest["num_completions"])
    total = int(ends[-1]) if len(ends) else 0
    num_pages = max(1, -(-total // COMPLETIONS_PER_PAGE))
    number = min(number, num_pages)
    start = (number - 1) * COMPLETIONS_PER_PAGE
    end = min(start + COMPLETIONS_PER_PAGE, total)
    from_group = int(np.searchsorted(ends, start, side="right"))
    to_group = int(np.searchsorted(ends, end)) + 1
    skipped = start - (int(ends[from_group - 1]) if from_group else 0)
    steps = newest["step"][from_group:to_group].tolist()
    whole = (
        Group.objects.current()
        .filter(run=run, prompt_index=prompt, step__in=steps)
        .defer("prompt", "answer")
        .order_by("-step")
        .select_related("packed_completions")
    )
    all_completions = [
        completion for group in whole for completion in group.completions
    ]
    completions = all_completions[skipped : skipped + end - start]
    page = FoundPage(
        num_shown=len(completions),
        number=number,
        num_pages=num_pages,
        first=start + 1 if total else 0,
        num_found=total,
        is_cut=False,
    )
    return page, completions


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSample:
    """The best and the worst completion of one group of a step."""

    group: Group
    place: int  # 1 …, of the step's groups by falling spread
    num_groups: int
    best: Completion | None
    worst: Completion | None  # None: there is only one text


def pick_sample(run: Run, step: int | None, *, place: int) -> StepSample | None:
    """Pick from the group with the widest spread, or the next ones; the newest step's.

    At most four queries.
    """
    at = find_newest_step(run, step)
    if at is None:
        return None
    groups = step_groups(run, at).order_by(*ORDERS["-spread"])
    num_groups = groups.count()
    place = (place - 1) % num_groups + 1
    group = groups.select_related("packed_completions")[place - 1 : place].get()
    scored = [c for c in group.completions if c.reward is not None]
    ordered = sorted(scored or group.completions, key=lambda c: -(c.reward or 0))
    best = ordered[0] if ordered else None
    others = [c for c in ordered if best and c.text != best.text]
    return StepSample(
        group=group,
        place=place,
        num_groups=num_groups,
        best=best,
        worst=others[-1] if others else None,
    )


def find_newest_step(run: Run, until: int | None) -> int | None:
    """Find the last step with groups, up to the given one; else the first."""
    groups = Group.objects.current().filter(run=run)
    if until is None:
        return groups.order_by("-step").values_list("step", flat=True).first()
    step: int | None = (
        groups.filter(step__lte=until)
        .order_by("-step")
        .values_list("step", flat=True)
        .first()
    )
    if step is None:
        return groups.order_by("step").values_list("step", flat=True).first()
    return step
