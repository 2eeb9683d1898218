"""One page of a completion search, with the number of matches."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from dashboard.accounts.models import User
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.models import Completion, Group
from dashboard.completions.search.annotated import narrow_to_annotated
from dashboard.completions.search.blocks import Blocks, read_blocks
from dashboard.completions.search.filters import (
    Locations,
    Ranking,
    Selection,
    select,
    within_steps,
)
from dashboard.completions.search.text import (
    TextMatches,
    filter_candidates,
    search_texts,
    selections_of,
    text_filter,
)
from dashboard.runs.models import Run

PAGE_SIZE = 50
# Time of a text search: in total, for trigrams, and at least for texts.
TEXT_SECONDS, BITS_SECONDS, LEAST_SECONDS = 0.25, 0.05, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TextProgress:
    """The searched part of the candidates of a text search."""

    start: int
    end: int
    total: int
    steps: tuple[int, int] | None  # if sorted by step
    next_start: int | None  # where the next page begins

    @property
    def num_searched(self) -> int:
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
    """`selections` are the matches so far."""

    completions: list[Completion]
    selections: list[Selection]
    blocks: Blocks
    num_before: int
    num_found: int
    progress: TextProgress | None = None
    pattern: re.Pattern[str] | None = None  # of the text, where it is to be marked

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
        """True if `num_found` is final."""
        return self.progress is None or self.progress.is_whole

    @property
    def is_full(self) -> bool:
        return len(self.completions) >= PAGE_SIZE

    @property
    def num_selected(self) -> int:
        return sum(selection.count for selection in self.selections)


def find(run: Run, form: CompletionFilterForm, reader: User | None) -> Found:
    """Raises BlocksChanged if a worker changed the blocks during the search."""
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
    """Search from `start` on, in order, until the timeout."""
    start_time = time.monotonic()
    text = text_filter(form.value("text"), by_words=form.value("match") == "words")
    selections = filter_candidates(selections, text, until=start_time + BITS_SECONDS)
    ranking = Ranking(selections, form.value("sort"))
    start = min(form.value("start"), len(ranking))
    before = form.value("before") if start else 0
    matches = search_texts(
        ranking,
        text,
        start=start,
        until=max(start_time + TEXT_SECONDS, time.monotonic() + LEAST_SECONDS),
    )
    next_start = matches.end if matches.end < len(ranking) else None
    if len(matches.ranks) > PAGE_SIZE:
        next_start = int(matches.ranks[PAGE_SIZE])
    return Found(
        completions=read_completions(matches.found.take(slice(PAGE_SIZE))),
        selections=selections_of(matches.found),
        blocks=blocks,
        num_before=before,
        num_found=before + len(matches.found),
        pattern=text.pattern,
        progress=TextProgress(
            start=start,
            end=matches.end,
            total=len(ranking),
            steps=_steps(ranking, matches, form.value("sort")),
            next_start=next_start,
        ),
    )


def _steps(
    ranking: Ranking, matches: TextMatches, order: str
) -> tuple[int, int] | None:
    if order not in ("step", "-step") or matches.start >= matches.end:
        return None
    steps = [
        int(ranking.stretch(rank, rank + 1).steps()[0])
        for rank in (matches.start, matches.end - 1)
    ]
    return min(steps), max(steps)


def read_completions(locations: Locations) -> list[Completion]:
    """Read them in this order, with their groups, without superseded ones; up to four
    queries.
    """
    if not len(locations):
        return []
    ids, positions = (column.tolist() for column in locations.in_groups())
    groups_ = (
        Group.objects.current()
        .defer("prompt", "answer")
        .prefetch_related("packed_completions")
        .in_bulk(set(ids))
    )
    completions = {pk: group.completions for pk, group in groups_.items()}
    return [
        completions[pk][position]
        for pk, position in zip(ids, positions, strict=True)
        if position < len(completions.get(pk, []))
    ]
