"""A page of the completions that filters find, of which all is counted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dashboard.accounts.models import User
from dashboard.runs.models import Run
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.models import Completion, Group
from dashboard.samples.search.annotated import narrow_to_annotated
from dashboard.samples.search.blocks import Blocks, read_blocks
from dashboard.samples.search.filters import (
    Places,
    Ranking,
    Selection,
    select,
    within_steps,
)
from dashboard.samples.search.text import (
    Looked,
    look_through,
    may_hold,
    selections_of,
    text_filter,
)

PAGE_SIZE = 50
# Of a page with a text: all of it, the bits of trigrams, and texts themselves at least.
TEXT_SECONDS, BITS_SECONDS, LEAST_SECONDS = 0.25, 0.05, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLook:
    """How far a text was looked for, of the completions that may hold it."""

    start: int
    end: int
    total: int
    steps: tuple[int, int] | None  # where the order goes by them
    next_start: int | None  # where the next page begins

    @property
    def num_looked(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.end >= self.total

    @property
    def is_all(self) -> bool:
        """From the first to the last."""
        return self.is_whole and not self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """`selections` are those that were found, as far as was looked."""

    completions: list[Completion]
    selections: list[Selection]
    blocks: Blocks
    num_before: int
    num_found: int
    look: TextLook | None = None

    @property
    def number(self) -> int:
        return self.num_before // PAGE_SIZE + 1

    @property
    def num_pages(self) -> int:
        return max(1, -(-self.num_found // PAGE_SIZE))

    @property
    def first(self) -> int:
        return self.num_before + 1

    @property
    def last(self) -> int:
        return self.num_before + len(self.completions)

    @property
    def total(self) -> int:
        return self.blocks.num_completions

    @property
    def is_counted(self) -> bool:
        """Whether there are no more than `num_found`."""
        return self.look is None or self.look.is_whole

    @property
    def is_full(self) -> bool:
        return len(self.completions) >= PAGE_SIZE

    @property
    def num_selected(self) -> int:
        return sum(each.count for each in self.selections)


def find(run: Run, form: CompletionFilterForm, reader: User | None) -> Found:
    """Raises BlocksChanged: it was looked through while a worker changed it."""
    blocks = read_blocks(run)
    selections = within_steps(
        blocks.blocks, low=form.value("first_step"), high=form.value("last_step")
    )
    selections = narrow_to_annotated(selections, run, form, reader)
    selections = select(selections, form)
    if form.value("text"):
        return _find_text(blocks, selections, form)
    ranking = Ranking(selections, form.value("sort"))
    num_pages = max(1, -(-len(ranking) // PAGE_SIZE))
    number = min(form.value("page"), num_pages)
    start = (number - 1) * PAGE_SIZE
    return Found(
        completions=read_completions(ranking.stretch(start, start + PAGE_SIZE)),
        selections=selections,
        blocks=blocks,
        num_before=start,
        num_found=len(ranking),
    )


def _find_text(
    blocks: Blocks, selections: list[Selection], form: CompletionFilterForm
) -> Found:
    """From `start` on, in order, as far as the time allows."""
    begun = time.monotonic()
    wanted = text_filter(form.value("text"), by_words=form.value("match") == "words")
    selections = may_hold(selections, wanted, until=begun + BITS_SECONDS)
    ranking = Ranking(selections, form.value("sort"))
    start = min(form.value("start"), len(ranking))
    before = form.value("before") if start else 0
    until = max(begun + TEXT_SECONDS, time.monotonic() + LEAST_SECONDS)
    looked = look_through(ranking, wanted, start=start, until=until)
    return Found(
        completions=read_completions(looked.found.take(slice(PAGE_SIZE))),
        selections=selections_of(looked.found),
        blocks=blocks,
        num_before=before,
        num_found=before + len(looked.found),
        look=TextLook(
            start=start,
            end=looked.end,
            total=len(ranking),
            steps=_steps(ranking, looked, form.value("sort")),
            next_start=_next_start(looked, len(ranking)),
        ),
    )


def _next_start(looked: Looked, total: int) -> int | None:
    if len(looked.ranks) > PAGE_SIZE:
        return int(looked.ranks[PAGE_SIZE])
    return looked.end if looked.end < total else None


def _steps(ranking: Ranking, looked: Looked, order: str) -> tuple[int, int] | None:
    if order not in ("step", "-step") or looked.start >= looked.end:
        return None
    ends = (looked.start, looked.end - 1)
    steps = [int(ranking.stretch(rank, rank + 1).steps()[0]) for rank in ends]
    return min(steps), max(steps)


def read_completions(places: Places) -> list[Completion]:
    """In this order, with their groups; up to four queries.

    None that a resume has gone back before since.
    """
    if not len(places):
        return []
    ids, positions = (column.tolist() for column in places.in_groups())
    groups = Group.objects.current().defer("prompt", "answer")
    found = groups.prefetch_related("packed_completions").in_bulk(set(ids))
    completions = {pk: group.completions for pk, group in found.items()}
    return [
        completions[pk][position]
        for pk, position in zip(ids, positions, strict=True)
        if position < len(completions.get(pk, []))
    ]
