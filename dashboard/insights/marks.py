"""How a run is drawn in comparisons: always the same colour, whatever is beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NUM_COLOURS = 10  # --cohort-series-1 … in colors.css
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    colour: int  # 1 … NUM_COLOURS
    dash: str


def mark_runs(ids: Iterable[int]) -> dict[int, Mark]:
    """Colours by run number; where two meet, the younger run takes the next free one.

    >>> [mark.colour for mark in mark_runs([1, 2, 11]).values()]
    [1, 2, 3]
    """
    marks: dict[int, Mark] = {}
    taken: set[int] = set()
    for pk in sorted(ids):
        around = ((pk - 1 + i) % NUM_COLOURS for i in range(NUM_COLOURS))
        slot = next(slot for slot in around if slot not in taken)
        taken.add(slot)
        marks[pk] = Mark(colour=slot + 1, dash=DASHES[slot % len(DASHES)])
    return marks
