"""The gap between sampler and trainer: packed by step, and read as arrays.

With μ the sampler's probability of a token and π the trainer's, d = ln π - ln μ. Bins
and edges are those of `cohort.mismatch`. Records are little-endian, without
padding, as in signals/records.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.mismatch import (
    BIN_SUMS,
    DIFFERENCE_EDGES,
    GAP_EDGES,
    NUM_POSITIONS,
    PROBABILITY_EDGES,
    SIGNS,
    SUMS,
)
from dashboard.completions.models import MismatchStep
from dashboard.runs.models import Run
from trainer.events import GapBins, GapSums, MismatchMeasured

Records = NDArray[np.void]
Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

COUNT, NUMBER = "<u4", "<f4"
GROUP = np.dtype([("prompt", COUNT), ("num_completions", "<u2")])
COMPLETION = np.dtype(
    [(SUMS[0], COUNT), *((name, NUMBER) for name in (*SUMS[1:], "advantage"))]
)
BIN = np.dtype([(BIN_SUMS[0], COUNT), *((name, NUMBER) for name in BIN_SUMS[1:])])
BINS = np.dtype(
    [
        ("positions", BIN, NUM_POSITIONS),
        ("probabilities", BIN, len(PROBABILITY_EDGES) + 1),
        ("gaps", COUNT, len(GAP_EDGES) + 1),
        ("differences", COUNT, (len(SIGNS), len(DIFFERENCE_EDGES) + 1)),
    ]
)
MAX_STEPS = 1_000  # that a chart reads
COLUMNS = (
    *("step", "age", "against", "incomparable", "dtype"),
    *("groups", "completions", "bins"),
)


def pack_mismatch(event: MismatchMeasured, run_id: int) -> MismatchStep:
    completions = _pack_sums(event.sums, COMPLETION)
    completions["advantage"] = _numbers(event.advantages or [None] * len(completions))
    groups = np.array(list(zip(event.prompts, event.sizes, strict=True)), GROUP)
    bins = np.zeros((), BINS)
    bins["positions"] = _pack_sums(event.positions, BIN)
    bins["probabilities"] = _pack_sums(event.probabilities, BIN)
    bins["gaps"], bins["differences"] = event.gaps, event.differences
    return MismatchStep(
        run_id=run_id,
        step=event.step,
        attempt=event.attempt,
        against=event.against,
        incomparable=event.incomparable or "",
        age=event.age,
        dtype=event.dtype or "",
        groups=groups.tobytes(),
        completions=completions.tobytes(),
        bins=bins.tobytes(),
    )


def _pack_sums(sums: GapSums | GapBins, dtype: np.dtype[np.void]) -> Records:
    records: Records = np.zeros(len(sums.num_tokens), dtype)
    for name, values in sums:
        records[name] = values if name == "num_tokens" else _numbers(values)
    return records


def _numbers(values: Sequence[float | None]) -> NDArray[np.float32]:
    """NaN for what is missing, or too large for float32."""
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float64).astype(np.float32)
    return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Some steps S of a run, by step, and their N completions.

    `positions` [S, 12] and `probabilities` [S, 11] have the fields of BIN_SUMS,
    `completions` [N] those of SUMS and "advantage", NaN where it is not known. The sums
    are over the tokens that were measured: the policy's in the loss that have a μ.
    """

    steps: Counts  # [S]
    ages: Numbers  # [S], in updates; NaN: not known
    against: tuple[str, ...]  # [S] trainer.events.Against
    incomparable: tuple[str, ...]  # [S] trainer.events.Incomparable, "" if comparable
    dtypes: tuple[str, ...]  # [S] trainer.events.NumberFormat, "": not told
    positions: Records
    probabilities: Records
    gaps: Counts  # [S, 24] tokens by d
    differences: Counts  # [S, 3, 21] tokens by π - μ, by the sign of the advantage
    completions: Records
    step_of: Counts  # [N], the index of each completion's step
    groups: Records  # of the completions, in their order; none: not known

    @property
    def places(self) -> Counts:
        """The prompt_index and the position in its group of each completion, [N, 2].

        -1: not known.
        """
        places = np.full((len(self.completions), 2), -1)
        if len(self.groups):
            sizes = self.groups["num_completions"].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            places[:, 0] = np.repeat(self.groups["prompt"], sizes)
            places[:, 1] = np.arange(len(places)) - np.repeat(starts, sizes)
        return places


def read_mismatch(run: Run) -> Mismatch | None:
    """Read the current history's steps, of more than MAX_STEPS every n-th and the last;
    None if there are none. Two queries.
    """
    rows = MismatchStep.objects.filter(run=run, superseded_by=None).order_by("step")
    steps = list(rows.values_list("step", flat=True))
    every = -(-len(steps) // MAX_STEPS)
    if every > 1:
        rows = rows.filter(step__in=steps[::-every])
    return _unpack(rows.values_list(*COLUMNS))


def read_newest(run: Run, num_steps: int, last: int | None = None) -> Mismatch | None:
    """Read the newest steps, up to `last`; None if there are none. One query."""
    rows = MismatchStep.objects.filter(run=run, superseded_by=None)
    if last is not None:
        rows = rows.filter(step__lte=last)
    newest = rows.order_by("-step").values_list(*COLUMNS)[:num_steps]
    return _unpack(list(newest)[::-1])


def _unpack(rows: Iterable[tuple[Any, ...]]) -> Mismatch | None:
    """Unpack rows of COLUMNS."""
    columns = list(zip(*rows, strict=True))
    if not columns:
        return None
    steps, ages, against, incomparable, dtypes, *packed = columns
    groups, completions, bins = (
        np.frombuffer(b"".join(parts), dtype)
        for parts, dtype in zip(packed, (GROUP, COMPLETION, BINS), strict=True)
    )
    sizes = [len(part) // COMPLETION.itemsize for part in packed[1]]
    return Mismatch(
        steps=np.array(steps, np.int64),
        ages=np.array(ages, np.float64),
        against=against,
        incomparable=incomparable,
        dtypes=dtypes,
        positions=bins["positions"],
        probabilities=bins["probabilities"],
        gaps=bins["gaps"].astype(np.int64),
        differences=bins["differences"].astype(np.int64),
        completions=completions,
        step_of=np.repeat(np.arange(len(steps)), sizes),
        groups=groups,
    )
