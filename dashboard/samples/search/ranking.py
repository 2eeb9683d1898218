"""Selected completions in an order, of which any stretch is found at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dashboard.samples.search.blocks import read_column
from dashboard.samples.search.columns import UNKNOWN_LENGTH, Column
from dashboard.samples.search.places import NOWHERE, Places
from dashboard.samples.search.selecting import Selection

COLUMNS = {"reward": "rewards", "advantage": "advantages", "length": "lengths"}


class Ranking:
    """By `order`, such as -reward: the highest first; those without a score come last.

    Equals, and all with `step`, are by step, prompt and position; with -step the
    newest step is first.
    """

    def __init__(self, selections: Sequence[Selection], order: str) -> None:
        self._selections = list(selections)
        self._is_newest_first = order == "-step"
        if self._is_newest_first:
            self._selections.reverse()
        self._ends = np.cumsum([each.count for each in self._selections], dtype=int)
        name = COLUMNS.get(order.removeprefix("-"))
        self._keys = self._read_keys(name, order.startswith("-")) if name else None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def stretch(self, start: int, end: int) -> Places:
        """Those of the ranks start … end - 1, counted from 0."""
        start, end = max(0, start), min(end, len(self))
        if start >= end:
            return NOWHERE
        if self._keys is None:
            return self._at(np.arange(start, end))
        return self._at(ranked(self._keys, start, end))

    def _at(self, ranks: Column) -> Places:
        """Of ranks by place. Each block is looked at once."""
        rows = np.searchsorted(self._ends, ranks, side="right")
        places = np.empty(len(ranks), np.int64)
        for row in np.unique(rows):
            each = self._selections[row]
            of_block = self._in_order(each)
            is_here = rows == row
            begin = int(self._ends[row]) - len(of_block)
            places[is_here] = of_block[ranks[is_here] - begin]
        blocks = [each.block for each in self._selections]
        return Places(blocks=blocks, rows=rows, places=places)

    def _in_order(self, each: Selection) -> Column:
        places = each.places()
        if not self._is_newest_first:
            return places
        steps = each.block.steps_of(places).astype(np.int64)
        found: Column = places[np.argsort(-steps, kind="stable")]
        return found

    def _read_keys(self, name: str, is_descending: bool) -> Column:
        columns = read_column([each.block for each in self._selections], name)
        keys = [
            sortable(each.take(column), is_descending=is_descending)
            for each, column in zip(self._selections, columns, strict=True)
        ]
        return np.concatenate(keys) if keys else np.empty(0, np.uint32)


def sortable(values: Column, *, is_descending: bool) -> Column:
    """Whole numbers in the same order, what is unknown last: compared more quickly.

    The bits of a positive float32 are ordered as it is, those of a negative one the
    other way round.
    """
    if values.dtype.kind == "u":
        is_known = values != UNKNOWN_LENGTH
        return np.where(is_known, ~values, values) if is_descending else values
    bits = (values + np.float32(0)).view(np.uint32)  # -0.0 becomes 0.0
    is_negative = bits >> np.uint32(31) != 0
    keys = np.where(is_negative, ~bits, bits | np.uint32(2**31))
    if is_descending:
        keys = ~keys
    found: Column = np.where(np.isnan(values), np.uint32(2**32 - 1), keys)
    return found


def ranked(keys: Column, start: int, end: int) -> Column:
    """The places of the ranks start … end - 1, the lowest first, equals by place.

    Without sorting the millions before and behind them.
    """
    around = np.partition(keys, sorted({start, end - 1}))
    low, high = around[start], around[end - 1]
    num_below = np.count_nonzero(keys < low)
    if low == high:
        return np.flatnonzero(keys == low)[start - num_below : end - num_below]
    lows = np.flatnonzero(keys == low)[start - num_below :]
    between = np.flatnonzero((keys > low) & (keys < high))
    between = between[np.argsort(keys[between], kind="stable")]
    num_high = end - start - len(lows) - len(between)
    return np.concatenate([lows, between, np.flatnonzero(keys == high)[:num_high]])
