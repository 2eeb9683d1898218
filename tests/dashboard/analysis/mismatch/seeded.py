"""Runs with a known gap between sampler and trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cohort.mismatch import measure_gaps
from dashboard.completions.mismatch import pack_mismatch
from dashboard.completions.models import Group, GroupTokens, MismatchStep
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from trainer.events import MeasuredCompletion, MismatchMeasured


def sampled(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """ln μ of tokens: most are likely, some are rare."""
    return np.log(rng.beta(2.0, 0.6, (rows, width)).clip(1e-4, 1.0))


def store_gaps(
    run: Run,
    step: int,
    gaps: np.ndarray,
    *,
    sampling: np.ndarray | None = None,
    lengths: Sequence[int] | None = None,
    advantages: Sequence[float] | None = None,
    **fields: Any,
) -> MismatchStep:
    """Store a step's event, from d of each token [B, T]."""
    rows, width = gaps.shape
    if sampling is None:
        sampling = sampled(np.random.default_rng(step), rows, width)
    if advantages is None:
        advantages = [1.0 if row % 2 else -1.0 for row in range(rows)]
    mask = np.arange(width) < np.array(lengths or [width] * rows)[:, None]
    measured = measure_gaps(sampling + gaps, sampling, mask, advantages)
    event = MismatchMeasured(
        line=1,
        attempt=1,
        time=0.0,
        step=step,
        advantages=list(advantages),
        **{"age": 0, **fields},
        **measured.tree(),
    )
    row = pack_mismatch(event, run.pk)
    row.save()
    return row


def measured(
    *,
    gap: Sequence[float],
    sampling: Sequence[float],
    advantage: float = 1.0,
    now: Sequence[float] | None = None,
    coefficient: Sequence[float] | None = None,
) -> MeasuredCompletion:
    """Token values of a completion; `now`: ln π - ln π_old of its update."""
    size = len(gap)
    moved = np.zeros(size) if now is None else np.array(now)
    old = np.array(sampling) + np.array(gap)
    return MeasuredCompletion(
        num_tokens=size,
        ids=list(range(size)),
        pieces=[f" t{at}" for at in range(size)],
        special=[],
        logprob=(old + moved).tolist(),
        sampling_logprob=list(sampling),
        entropy=[0.5] * size,
        kl=None,
        ratio=np.exp(moved).tolist(),
        clipped=[0] * size,
        advantage=[advantage] * size,
        coefficient=list(coefficient) if coefficient else [advantage] * size,
    )


def store_tokens(group: Group, completions: Sequence[MeasuredCompletion]) -> None:
    GroupTokens.objects.create(group=group, packed=pack_tokens(completions))
