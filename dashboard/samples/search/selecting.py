"""Which completions a form's filters leave, but for its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.search.blocks import Block, read_column
from dashboard.samples.search.columns import LENGTH, NUMBER, UNKNOWN_LENGTH, Column
from dashboard.samples.search.kinds import (
    CUT,
    END_UNKNOWN,
    HIGH_SHORT,
    NEAR,
    RIGHT,
    RIGHT_LOW,
    UNSCORED,
)

# Which bits are looked at, and which of them are set.
Wanted = tuple[int, int]
ENDS: dict[str, Wanted] = {
    "length": (CUT, CUT),
    "stop": (CUT | END_UNKNOWN, 0),
    "unknown": (END_UNKNOWN, END_UNKNOWN),
}
OUTCOMES: dict[str, Wanted] = {
    "right": (RIGHT, RIGHT),
    "not_right": (RIGHT | UNSCORED, 0),
    "unscored": (UNSCORED, UNSCORED),
}
SURPRISES: dict[str, Wanted] = {
    "right_low": (RIGHT_LOW, RIGHT_LOW),
    "high_short": (HIGH_SHORT, HIGH_SHORT),
    "near": (NEAR, NEAR),
}
RANGES = {
    "rewards": ("min_reward", "max_reward", NUMBER),
    "advantages": ("min_advantage", "max_advantage", NUMBER),
    "lengths": ("min_length", "max_length", LENGTH),
}
Test = Callable[[Column], Column]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Of a block the completions `low` … `high` - 1 that `mask` leaves, or all."""

    block: Block
    low: int
    high: int
    mask: Column | None = None

    @property
    def count(self) -> int:
        if self.mask is None:
            return self.high - self.low
        return int(np.count_nonzero(self.mask))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its block."""
        is_full = self.high - self.low == self.block.num_completions
        return self.mask is None and is_full

    def places(self) -> Column:
        """In the block."""
        if self.mask is None:
            return np.arange(self.low, self.high)
        return np.flatnonzero(self.mask) + self.low

    def take(self, column: Column) -> Column:
        if self.mask is None:
            return column[self.low : self.high]
        # Seven times as fast as with the mask itself, where that is half true.
        return column.take(self.places())

    def narrow(self, is_so: Column) -> Selection:
        """`is_so` is by completion of low … high - 1."""
        return replace(self, mask=is_so if self.mask is None else self.mask & is_so)


def select(
    selections: Sequence[Selection], form: CompletionFilterForm
) -> list[Selection]:
    """What the filters by prompt and by numbers leave; up to a query a filter."""
    found = list(selections)
    if (prompt := form.value("prompt")) is not None:
        found = _of_prompt(found, prompt)
    for name, wanted in _bits(form):
        found = _test(found, name, _has(*wanted))
    for name, (low, high, dtype) in RANGES.items():
        bounds = form.value(low), form.value(high)
        if bounds != (None, None):
            found = _test(found, name, _between(*bounds, dtype))
    if rule := form.value("rule"):
        found = [each for each in found if rule in each.block.rule_names]
        bounds = form.value("min_score"), form.value("max_score")
        found = _test(found, "scores", _between(*bounds, NUMBER), rule=rule)
    return found


def within_steps(
    blocks: Sequence[Block], *, low: int | None, high: int | None
) -> list[Selection]:
    """Those of the blocks that have some."""
    found = []
    for block in blocks:
        steps, ends = block.steps["step"], np.append(0, block.step_ends)
        first = 0 if low is None else np.searchsorted(steps, low)
        last = len(steps) if high is None else np.searchsorted(steps, high, "right")
        if first < last:
            found.append(
                Selection(block=block, low=int(ends[first]), high=int(ends[last]))
            )
    return found


def _of_prompt(found: Sequence[Selection], prompt: int) -> list[Selection]:
    blocks = [each.block for each in found]
    prompts = read_column(blocks, "prompts")
    sizes = read_column(blocks, "group_sizes")
    narrowed = []
    for each, of_groups, of_sizes in zip(found, prompts, sizes, strict=True):
        is_it = of_groups == prompt
        if is_it.any():
            is_so = np.repeat(is_it, of_sizes)[each.low : each.high]
            narrowed.append(each.narrow(is_so))
    return _with_some(narrowed)


def _bits(form: CompletionFilterForm) -> Iterator[tuple[str, Wanted]]:
    if end := form.value("end"):
        yield "kinds", ENDS[end]
    if outcome := form.value("outcome"):
        yield "kinds", OUTCOMES[outcome]
    if surprise := form.value("surprise"):
        yield "kinds", SURPRISES[surprise]


def _has(mask: int, value: int) -> Test:
    return lambda kinds: (kinds & mask) == value


def _between(low: float | None, high: float | None, dtype: Any) -> Test:
    """And known: without a score nothing is at least or at most a number."""

    with np.errstate(over="ignore"):
        least, most = (b if b is None else dtype.type(b) for b in (low, high))

    def is_between(values: Column) -> Column:
        is_so: Column = values == values  # NaN is not
        if dtype is LENGTH:
            is_so &= values != UNKNOWN_LENGTH
        if least is not None:
            is_so &= values >= least
        if most is not None:
            is_so &= values <= most
        return is_so

    return is_between


def _test(
    found: Sequence[Selection], name: str, test: Test, *, rule: str = ""
) -> list[Selection]:
    columns = read_column([each.block for each in found], name, rule)
    return _with_some(
        each.narrow(test(column[each.low : each.high]))
        for each, column in zip(found, columns, strict=True)
    )


def _with_some(found: Any) -> list[Selection]:
    return [each for each in found if each.mask is None or each.mask.any()]
