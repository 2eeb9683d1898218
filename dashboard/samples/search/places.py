from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.samples.search.blocks import Block, read_column
from dashboard.samples.search.columns import Column


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Completions, each by its block's row in `blocks` and its place in the block."""

    blocks: Sequence[Block]
    rows: Column
    places: Column

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: slice | Column) -> Places:
        return Places(
            blocks=self.blocks, rows=self.rows[which], places=self.places[which]
        )

    def steps(self) -> Column:
        found = np.empty(len(self), np.int64)
        for row in np.unique(self.rows):
            is_here = self.rows == row
            found[is_here] = self.blocks[row].steps_of(self.places[is_here])
        return found

    def in_groups(self) -> tuple[Column, Column]:
        """Each one's group, by its id, and its position there; up to two queries."""
        used = np.unique(self.rows)
        blocks = [self.blocks[row] for row in used]
        ids = read_column(blocks, "group_ids")
        sizes = read_column(blocks, "group_sizes")
        groups = np.empty(len(self), np.int64)
        positions = np.empty(len(self), np.int64)
        for row, of_groups, of_sizes in zip(used, ids, sizes, strict=True):
            is_here = self.rows == row
            ends = np.cumsum(of_sizes, dtype=np.int64)
            places = self.places[is_here]
            at = np.searchsorted(ends, places, side="right")
            groups[is_here] = of_groups[at]
            positions[is_here] = places - (ends[at] - of_sizes[at])
        return groups, positions


NOWHERE = Places(blocks=(), rows=np.empty(0, int), places=np.empty(0, int))


def join(parts: Sequence[Places]) -> Places:
    """Parts of one and the same list of blocks."""
    if not parts:
        return NOWHERE
    return Places(
        blocks=parts[0].blocks,
        rows=np.concatenate([part.rows for part in parts]),
        places=np.concatenate([part.places for part in parts]),
    )
