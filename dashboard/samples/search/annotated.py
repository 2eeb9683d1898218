"""Where in the blocks the few completions are that somebody has marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from dashboard.accounts.models import User
from dashboard.runs.models import Run
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.models import Comment, Tag, Thumb
from dashboard.samples.search.blocks import Block, read_column
from dashboard.samples.search.columns import Column
from dashboard.samples.search.filters import Selection

ANY = ("good", "bad", "tagged", "commented")
NO_PLACES = np.empty(0, np.int64)


class Mark(NamedTuple):
    """A label of a completion, or of a whole group where position is None."""

    label: tuple[str, str]  # the form's field, and its value
    step: int
    group_id: int
    position: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """Of a block the places that have each label."""

    block: Block
    places: dict[tuple[str, str], Column]


def narrow_to_marked(
    found: Sequence[Selection],
    run: Run,
    form: CompletionFilterForm,
    reader: User | None,
) -> list[Selection]:
    """Those with this tag, and those that somebody, or the reader, marked in this way.

    What is said of a whole group is said of its completions only as a tag. Up to five
    queries, none where the form asks for no marks.
    """
    tag, kind = (form.value(name) or "" for name in ("tag", "mark"))
    by_reader = form.value("by") == "me"
    if by_reader and not (tag or kind):
        kind = "any"
    if not (tag or kind):
        return list(found)
    all_marks = read_all_marks(run, by=reader if by_reader else None)
    marks = marks_of_completions(all_marks)
    blocks = [each.block for each in found]
    places = {each.block.pk: each.places for each in locate(blocks, marks)}
    narrowed = [
        each.narrow(_is_marked(each, places[each.block.pk], tag=tag, kind=kind))
        for each in found
        if each.block.pk in places
    ]
    return [each for each in narrowed if each.count]


def _is_marked(
    each: Selection, places: dict[tuple[str, str], Column], *, tag: str, kind: str
) -> Column:
    kinds = ANY if kind == "any" else (kind,)
    is_so = np.ones(each.high - each.low, bool)
    if tag:
        is_so &= _mask(each, [places.get(("tag", tag), NO_PLACES)])
    if kind:
        is_so &= _mask(each, [places.get(("mark", k), NO_PLACES) for k in kinds])
    return is_so


def _mask(each: Selection, places: Sequence[Column]) -> Column:
    is_so = np.zeros(each.block.num_completions, bool)
    is_so[np.concatenate(places)] = True
    return is_so[each.low : each.high]


def read_all_marks(run: Run, *, by: User | None = None) -> list[Mark]:
    """Of the current history, by anybody or by one person; three queries."""
    of_run: dict[str, Any] = {"group__run": run, "group__superseded_by": None}
    if by is not None:
        of_run["user"] = by
    place = ("group__step", "group_id", "position")
    marks = [
        Mark(("mark", "good" if is_up else "bad"), *at)
        for is_up, *at in Thumb.objects.filter(**of_run).values_list("is_up", *place)
    ]
    for name, *at in Tag.objects.filter(**of_run).values_list("name", *place):
        marks += [Mark(("tag", name), *at), Mark(("mark", "tagged"), *at)]
    commented = Comment.objects.filter(**of_run).values_list(*place)
    marks += [Mark(("mark", "commented"), *at) for at in commented]
    return marks


def marks_of_completions(marks: Sequence[Mark]) -> list[Mark]:
    """What is said of a whole group is said of its completions only as a tag."""
    return [
        mark
        for mark in marks
        if mark.position is not None
        or mark.label[0] == "tag"
        or mark.label[1] == "tagged"
    ]


def locate(blocks: Sequence[Block], marks: Iterable[Mark]) -> list[Marked]:
    """Of the blocks that have some; up to two queries."""
    known = [block for block in blocks if len(block.steps)]
    lasts = [int(block.steps["step"][-1]) for block in known]
    by_block: dict[int, list[Mark]] = {}
    for mark in marks:
        row = int(np.searchsorted(lasts, mark.step))
        if row < len(known) and mark.step >= known[row].steps["step"][0]:
            by_block.setdefault(row, []).append(mark)
    used = [known[row] for row in by_block]
    if not used:
        return []
    ids, sizes = (read_column(used, name) for name in ("group_ids", "group_sizes"))
    return [
        Marked(block=block, places=_places(of_block, group_ids, group_sizes))
        for block, of_block, group_ids, group_sizes in zip(
            used, by_block.values(), ids, sizes, strict=True
        )
    ]


def _places(
    marks: Sequence[Mark], group_ids: Column, group_sizes: Column
) -> dict[tuple[str, str], Column]:
    starts = np.cumsum(group_sizes, dtype=np.int64) - group_sizes
    rows = {group_id: row for row, group_id in enumerate(group_ids.tolist())}
    found: dict[tuple[str, str], set[int]] = {}
    for mark in marks:
        row = rows.get(mark.group_id)
        if row is None:
            continue
        start, size = int(starts[row]), int(group_sizes[row])
        positions = range(size) if mark.position is None else [mark.position]
        places = found.setdefault(mark.label, set())
        places.update(start + position for position in positions if position < size)
    return {label: np.array(sorted(places)) for label, places in found.items()}


NUM_WORDS = 5  # of a shingle
FROM_JACCARD = 0.8


def find_near_duplicates(texts: Sequence[str]) -> list[bool]:
    """Of a group's texts those that are nearly like another one.

    Two are when the Jaccard similarity of their shingles, each five words in a row, is
    at least 0.8: |A ∩ B| / |A ∪ B|. Case and white space do not count.

    >>> find_near_duplicates(["So it is 4.", "so  it is 4.", "No."])
    [True, True, False]
    """
    by_words: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        by_words[tuple(text.lower().split())].append(place)
    found = [False] * len(texts)
    alike = [places for places in by_words.values() if len(places) > 1]
    shingled = [(_shingles(words), places) for words, places in by_words.items()]
    for (some, places), (others, other_places) in combinations(shingled, 2):
        if _is_near(some, others):
            alike += [places, other_places]
    for places in alike:
        for place in places:
            found[place] = True
    return found


def _shingles(words: tuple[str, ...]) -> set[int]:
    if len(words) < NUM_WORDS:
        return {hash(words)}
    return set(map(hash, zip(*(words[i:] for i in range(NUM_WORDS)), strict=False)))


def _is_near(some: set[int], others: set[int]) -> bool:
    fewer, more = sorted((len(some), len(others)))
    if fewer < FROM_JACCARD * more:
        return False
    num_common = len(some & others)
    return num_common >= FROM_JACCARD * (fewer + more - num_common)
