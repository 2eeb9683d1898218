"""Which completions of a run a question is asked of, and which of them people label.

Steps are cut into windows; of each, groups are drawn without replacement, then a
completion of each; further ones of a group only when the groups run out. The order is
by hashes of the seed, the group and the position, so a larger sample contains a smaller
one, and what a stopped job has labelled is still drawn at random.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from django.http import QueryDict
from numpy.typing import NDArray

from dashboard.accounts.models import User
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.search.annotated import narrow_to_annotated
from dashboard.completions.search.blocks import read_blocks
from dashboard.completions.search.filters import (
    Locations,
    Ranking,
    Selection,
    select,
    within_steps,
)
from dashboard.completions.search.text import (
    filter_candidates,
    mix,
    search_texts,
    selections_of,
    text_filter,
)
from dashboard.runs.models import Run

MOST_WINDOWS = 20
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment
MOST_SECONDS = 3_600.0  # of a search for a text
Keys = NDArray[np.uint64]
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """A completion of a sample; it stands for `weight` that match."""

    group: int
    position: int
    step: int
    window: int
    weight: float
    key: int


@dataclass(kw_only=True, slots=True)
class _Window:
    """The groups of a window with the lowest keys, of all that were found there."""

    num_groups: int = 0
    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    groups: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    positions: dict[int, tuple[int, Ids]] = field(default_factory=dict)  # with step

    def add(self, keys: Keys, groups: Ids, *, most: int) -> None:
        self.num_groups += len(groups)
        keys = np.concatenate([self.keys, keys])
        lowest = np.argsort(keys, kind="stable")[:most]
        self.keys = keys[lowest]
        self.groups = np.concatenate([self.groups, groups])[lowest]


def matching(run: Run, query: str, reader: User | None) -> list[Selection]:
    """Return all completions that a search finds, however long it takes."""
    form = CompletionFilterForm.read(QueryDict(query))
    if form.value("by") == "me" and reader is None:
        return []  # the one who asked is gone
    selections = within_steps(
        read_blocks(run).blocks,
        low=form.value("first_step"),
        high=form.value("last_step"),
    )
    selections = select(narrow_to_annotated(selections, run, form, reader), form)
    if not form.value("text"):
        return selections
    text = text_filter(form.value("text"), by_words=form.value("match") == "words")
    until = time.monotonic() + MOST_SECONDS
    candidates = filter_candidates(selections, text, until=until)
    found = search_texts(Ranking(candidates, "step"), text, start=0, until=until)
    return selections_of(found.found)


def draw_sample(
    selections: Sequence[Selection], *, size: int, seed: int
) -> tuple[list[Sampled], int]:
    """Return at least `size` completions, in the order of asking, and how many match.

    It is a few more so that all windows have equally many; fewer where fewer match. A
    weight is (groups found / drawn in its window) · (matching / drawn in its group).
    """
    num_found = sum(selection.count for selection in selections)
    if not num_found:
        return [], 0
    ends = [
        selection.block.steps_of(selection.indices()[[0, -1]])
        for selection in selections
    ]
    first, last = int(np.min(ends)), int(np.max(ends))
    num_windows = min(MOST_WINDOWS, last - first + 1)
    most = -(-size // num_windows)
    windows = [_Window() for _ in range(num_windows)]
    for selection in selections:
        _read(selection, windows, first=first, last=last, most=most, seed=seed)
    sample = [
        each
        for number, window in enumerate(windows)
        for each in _draw(window, number, most=most, seed=seed)
    ]
    return sorted(sample, key=lambda each: each.key), num_found


def _read(
    selection: Selection,
    windows: list[_Window],
    *,
    first: int,
    last: int,
    most: int,
    seed: int,
) -> None:
    indices = selection.indices()
    found = Locations(
        blocks=[selection.block], rows=np.zeros(len(indices), int), indices=indices
    )
    steps, (groups, positions) = found.steps(), found.in_groups()
    number = (steps - first) * len(windows) // (last - first + 1)
    for at in np.unique(number).tolist():
        is_here = number == at
        of_groups, of_positions = groups[is_here], positions[is_here]
        # a group's completions stand together; groups are not by their ids
        starts = np.append(0, np.flatnonzero(np.diff(of_groups)) + 1)
        ends = np.append(starts[1:], len(of_groups))
        distinct = of_groups[starts]
        window = windows[at]
        window.add(hash_keys(seed, distinct), distinct, most=most)
        kept = set(window.groups.tolist())
        window.positions = {k: v for k, v in window.positions.items() if k in kept}
        for group, start, end in zip(
            distinct.tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            if group in kept:
                step = int(steps[is_here][start])
                window.positions[group] = step, of_positions[start:end]


def _draw(window: _Window, number: int, *, most: int, seed: int) -> list[Sampled]:
    """Draw one of each group, then the next ones of each, until there are enough."""
    ordered = []
    for group in window.groups.tolist():
        step, positions = window.positions[group]
        keys = hash_keys(seed, np.full(len(positions), group), positions)
        order = np.argsort(keys, kind="stable")
        ordered.append((group, step, positions[order], keys[order]))
    rounds = max((len(positions) for _, _, positions, _ in ordered), default=0)
    drawn = [
        (at, turn)
        for turn in range(rounds)
        for at, (_, _, positions, _) in enumerate(ordered)
        if turn < len(positions)
    ][:most]
    counts = np.bincount([at for at, _ in drawn], minlength=len(ordered))
    num_drawn = int(np.count_nonzero(counts))
    return [
        Sampled(
            group=ordered[at][0],
            position=int(ordered[at][2][turn]),
            step=ordered[at][1],
            window=number,
            weight=window.num_groups / num_drawn * len(ordered[at][2]) / counts[at],
            key=int(ordered[at][3][turn]),
        )
        for at, turn in drawn
    ]


def hash_keys(seed: int, *columns: Ids) -> Keys:
    """Hash rows of numbers with splitmix64."""
    with np.errstate(over="ignore"):
        keys = mix(np.full(len(columns[0]), seed, np.uint64) + GOLDEN)
        for column in columns:
            keys = mix((keys ^ column.astype(np.uint64)) + GOLDEN)
    return keys


def order_for_people(
    seed: int, groups: Ids, positions: Ids, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return -ln(u) / w of each: the lowest are a draw in proportion to weights w.

    Efraimidis and Spirakis 2006.
    """
    keys = hash_keys(seed + 1, groups, positions)
    uniform = (keys.astype(np.float64) + 1) / 2.0**64
    return -np.log(np.minimum(uniform, 1.0)) / weights
