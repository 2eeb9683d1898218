"""The gap between sampler and trainer: packed by step, and read as arrays.

With μ the sampler's probability of a token and π the trainer's, d = ln π - ln μ. Bins
and edges are those of `cohort.mismatch`. Records are little-endian, without
padding, as in signals/records.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from dashboard.completions.models import Group, MismatchStep
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
    positions: Records
    probabilities: Records
    gaps: Counts  # [S, 24] tokens by d
    differences: Counts  # [S, 3, 21] tokens by π - μ, by the sign of the advantage
    completions: Records
    step_of: Counts  # [N], the index of each completion's step


def read_mismatch(
    run: Run,
    *,
    first: int | None = None,
    last: int | None = None,
    newest: int | None = None,
    max_steps: int = MAX_STEPS,
) -> Mismatch | None:
    """Read the current history's steps within these, or the `newest` of them; of more
    than `max_steps` every n-th and the last; None if there are none. Two queries.
    """
    rows = MismatchStep.objects.filter(run=run, superseded_by=None)
    if first is not None:
        rows = rows.filter(step__gte=first)
    if last is not None:
        rows = rows.filter(step__lte=last)
    steps = list(rows.order_by("step").values_list("step", flat=True))
    if not steps:
        return None
    if newest is not None:
        steps = steps[-newest:]
    every = -(-len(steps) // max_steps)
    return _unpack(list(rows.filter(step__in=steps[::-every]).order_by("step")))


def _unpack(rows: Sequence[MismatchStep]) -> Mismatch:
    bins = np.frombuffer(b"".join(bytes(row.bins) for row in rows), BINS)
    parts = [np.frombuffer(bytes(row.completions), COMPLETION) for row in rows]
    return Mismatch(
        steps=np.array([row.step for row in rows], np.int64),
        ages=np.array([row.age for row in rows], np.float64),
        against=tuple(row.against for row in rows),
        incomparable=tuple(row.incomparable for row in rows),
        positions=bins["positions"],
        probabilities=bins["probabilities"],
        gaps=bins["gaps"].astype(np.int64),
        differences=bins["differences"].astype(np.int64),
        completions=np.concatenate(parts),
        step_of=np.repeat(np.arange(len(rows)), [len(part) for part in parts]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMismatch:
    """The gap of one step, with prompt, length and reward of its N completions."""

    step: Mismatch  # of this step alone
    prompts: Counts  # [N] prompt_index of its group; -1, here and below: not known
    positions: Counts  # [N] in its group
    rewards: Numbers  # [N]; NaN: none, or not stored


def read_step_mismatch(run: Run, step: int) -> StepMismatch | None:
    """Read one step; None if it was not measured. Two queries."""
    row = MismatchStep.objects.filter(run=run, superseded_by=None, step=step).first()
    if row is None:
        return None
    mismatch = _unpack([row])
    num = len(mismatch.completions)
    prompts, positions = np.full((2, num), -1, np.int64)
    rewards, start = np.full(num, np.nan), 0
    groups = np.frombuffer(bytes(row.groups), GROUP)
    of_step = Group.objects.current().filter(run=run, step=step, is_trained=True)
    stored = dict(of_step.values_list("prompt_index", "packed_completions__rewards"))
    for prompt, size in groups.tolist():
        here = slice(start, start + size)
        prompts[here], positions[here] = prompt, np.arange(size)
        if len(stored.get(prompt) or ()) == size:
            rewards[here] = np.array(stored[prompt], np.float64)
        start += size
    return StepMismatch(
        step=mismatch,
        prompts=prompts,
        positions=positions,
        rewards=rewards,
    )
