"""Rollups as packed records of a step, joined into stretches of steps.

Little-endian, without padding, so that the records of many steps are joined by
PostgreSQL as they are and read by numpy in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg import Cursor, sql

from dashboard.completions.models import Group, StepRollup
from dashboard.runs.charts.series import find_bounds
from dashboard.runs.models import Run
from trainer.events import GroupScored, Signal, policy_text

Numbers = NDArray[np.float64]
Records = NDArray[np.void]
SIGNALS: tuple[str, ...] = get_args(Signal)
MIXED = SIGNALS.index("mixed")
PHASES = ("generate", "score", "logprobs", "update", "sync")

GROUP = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("mean", "<f4"),  # NaN: no completion could be scored
        ("std", "<f4"),
        ("num_completions", "<u2"),
        ("signal", "u1"),  # index in SIGNALS
        ("is_trained", "?"),
    ]
)
# How many completions of a group were scored as right or wrong, and how many as right.
PASSES = np.dtype([("num_scored", "<u2"), ("num_right", "<u2")])
# Of all groups of a step with at least k completions that were scored so:
# the sum of their maj@k. k = 0 alone: no rule of the step reads answers.
MAJORITY = np.dtype([("k", "<u2"), ("num_groups", "<u2"), ("sum", "<f4")])
MAX_K = 64
BIN = np.dtype([("bin", "<i2"), ("count", "<u4")])
QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
QUANTILE = np.dtype("<f4")
# The step first, then each rule in the order of `rule_names`.
RULE_HEAD = ("num_scored", "reward_sum", "weight", "num_groups")
RULE_PART = ("part_sum", "share_sum", "num_varied")
RULE = np.dtype("<f8")
# Seconds of each phase and of the whole step; then, of generate, score, logprobs and
# update, those spent on dead groups, NaN where the step's groups are not known.
TIMINGS = (*PHASES, "step", *(f"dead_{phase}" for phase in PHASES[:4]))
SECONDS = np.dtype("<f4")


# Edges of histograms, the same for every step of every run: no one knows the range of a
# run's rewards or advantages beforehand, and histograms can be added up only if their
# edges agree. So they are fixed: 40 a decade (ISO 3, series R40, 6% apart) from 0.01
# to 1,000, for either sign. Bin 0 holds exactly 0, bin 1 what is below 0.01, bin 2 from
# 0.01 on; the last bin has no upper end; bin −n mirrors n.
_R40 = """
1 1.06 1.12 1.18 1.25 1.32 1.4 1.5 1.6 1.7 1.8 1.9 2 2.12 2.24 2.36 2.5 2.65 2.8 3
3.15 3.35 3.55 3.75 4 4.25 4.5 4.75 5 5.3 5.6 6 6.3 6.7 7.1 7.5 8 8.5 9 9.5
"""
DECADES = range(-2, 3)
EDGES: Numbers = np.array(
    [float(f"{r}e{d}") for d in DECADES for r in _R40.split()] + [1_000.0]
)
LAST_BIN = len(EDGES) + 1
# Sums of weights such as 0.1 end a hair below the edge that they mean.
SLACK = 1 + 1e-9
MAX_STRETCHES = 160
QUERY = sql.SQL(
    """
    SELECT (step - %(first)s) / %(width)s AS index, count(*), {names}{columns}
      FROM samples_steprollup
     WHERE run_id = %(run)s AND superseded_by IS NULL
       AND step BETWEEN %(first)s AND %(last)s
     GROUP BY index, 3
     ORDER BY index
    """
)
JOINED = sql.SQL(", string_agg({column}, ''::bytea ORDER BY step)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The steps first … last, in stretches of `width`."""

    first: int
    last: int
    width: int

    def stretch_of(self, step: Any) -> Any:
        return (step - self.first) // self.width

    @property
    def num_stretches(self) -> int:
        return int(self.stretch_of(self.last)) + 1

    def column(self, stretch: int) -> dict[str, Any]:
        """Return its first and last step, as a chart's column begins."""
        begin = self.first + stretch * self.width
        return {"first": begin, "last": min(begin + self.width - 1, self.last)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Some steps' packed columns, one behind the other by step."""

    index: int
    num_steps: int
    rule_names: tuple[str, ...]  # () unless read by_rules
    columns: tuple[bytes, ...]


def find_span(
    run: Run,
    *,
    first: int | None = None,
    last: int | None = None,
    max_stretches: int = MAX_STRETCHES,
) -> Span | None:
    """Find the current history's steps within these; None if there are none."""
    bin_bounds = find_bounds(
        StepRollup.objects.filter(run=run, superseded_by=None), first, last
    )
    if bin_bounds is None:
        return None
    start, end = bin_bounds
    return Span(first=start, last=end, width=-(-(end - start + 1) // max_stretches))


def read_stretches(
    run: Run, span: Span, columns: Sequence[str], *, by_rules: bool = False
) -> list[Stretch]:
    """Read stretches; one query. `by_rules`: separate ones for each set of rules."""
    query = QUERY.format(
        names=sql.SQL("rule_names" if by_rules else "NULL::text[]"),
        columns=sql.Composed(
            [JOINED.format(column=sql.Identifier(c)) for c in columns]
        ),
    )
    rows = fetch_packed(
        query,
        {
            "run": run.pk,
            "first": span.first,
            "last": span.last,
            "width": span.width,
        },
    )
    return [
        Stretch(
            index=index,
            num_steps=num_steps,
            rule_names=tuple(names or ()),
            columns=tuple(packed),
        )
        for index, num_steps, names, *packed in rows
    ]


def fetch_packed(query: str | sql.Composed, parameters: Any) -> list[tuple[Any, ...]]:
    """Fetch the rows of a query with bytes in them."""
    # psycopg's cursor returns bytes, Django's hexadecimal text.
    connection.ensure_connection()
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        cursor.execute(query, parameters, binary=True)
        return cursor.fetchall()


def shorten(value: float | None, num_digits: int = 4) -> float | None:
    """Rounded for JSON; None for NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{num_digits}g}")


def unpack(packed: bytes, kind: Any) -> NDArray[Any]:
    return np.frombuffer(packed, kind)


def count_bins(values: Numbers) -> Records:
    """Count the values in each bin, by rising bin."""
    numbers = np.searchsorted(EDGES, np.abs(values) * SLACK, side="right") + 1
    signed = np.where(values == 0, 0, np.sign(values) * numbers).astype(np.int64)
    values_found, counts = np.unique(signed, return_counts=True)
    bins = np.empty(len(values_found), BIN)
    bins["bin"], bins["count"] = values_found, counts
    return bins


def bin_bounds(number: int) -> tuple[float, float]:
    """Return the lowest and the highest value of a bin; bin 0 is 0 alone."""
    size = abs(number)
    low = float(EDGES[size - 2]) if size > 1 else 0.0
    high = float(EDGES[size - 1]) if size <= len(EDGES) else math.inf
    if number == 0:
        return 0.0, 0.0
    return (low, high) if number > 0 else (-high, -low)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGroup:
    """A group; lists are by completion."""

    prompt_index: int
    reward_mean: float | None
    reward_std: float | None
    signal: str
    is_trained: bool
    rewards: Sequence[float | None]
    advantages: Sequence[float | None]  # None, as num_tokens: unknown
    num_tokens: Sequence[int | None]
    rules: Sequence[dict[str, float | None]]  # each rule's score, before its weight
    texts: Sequence[str]  # the policy's, with what was begun

    @property
    def is_dead(self) -> bool:
        """True if it has no signal: all advantages are 0, or not in the batch."""
        if not any(advantage is not None for advantage in self.advantages):
            return not self.is_trained or self.signal != "mixed"
        return not self.is_trained or not any(self.advantages)


def from_event(event: GroupScored) -> StepGroup:
    completions = event.completions
    return StepGroup(
        prompt_index=event.prompt_index,
        reward_mean=event.reward_mean,
        reward_std=event.reward_std,
        signal=event.signal,
        is_trained=event.is_trained,
        rewards=[c.reward for c in completions],
        advantages=[c.advantage for c in completions],
        num_tokens=[c.num_tokens for c in completions],
        rules=[c.rules for c in completions],
        texts=[
            event.begun + policy_text(c.text, map(vars, c.turns)) for c in completions
        ],
    )


def from_row(group: Group) -> StepGroup:
    completions = group.completions
    names = group.rule_names
    return StepGroup(
        prompt_index=group.prompt_index,
        reward_mean=group.reward_mean,
        reward_std=group.reward_std,
        signal=group.signal,
        is_trained=group.is_trained,
        rewards=[c.reward for c in completions],
        advantages=[c.advantage for c in completions],
        num_tokens=[c.num_tokens for c in completions],
        rules=[dict(zip(names, c.rule_scores, strict=False)) for c in completions],
        texts=[group.begun + c.policy_text for c in completions],
    )


def read_groups(
    run_id: int, *, step: int, attempt: int, before_seq: int | None = None
) -> list[StepGroup]:
    """Read groups of one attempt of the run, in the order they came; two queries."""
    groups = Group.objects.filter(run_id=run_id, step=step, attempt=attempt)
    if before_seq is not None:
        groups = groups.filter(seq__lt=before_seq)
    return [
        from_row(row)
        for row in groups.defer("prompt", "messages", "answer")
        .order_by("seq")
        .prefetch_related("packed_completions")
    ]
