"""pass@k over training, from the training groups themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.runs.models import Run
from dashboard.samples.models import StepRollup
from dashboard.samples.signals.columns import find_span, read_stretches
from dashboard.samples.signals.records import PASSES, Numbers, Records, unpack

MAX_K = 64


def read_passes(
    run: Run, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Three queries. `shares[k - 1]` is pass@k by column, null where no group has k.

    Columns are of the steps in which a completion could be told right or wrong;
    `num_older` steps were rolled up before this was kept.
    """
    span = find_span(run, first=first, last=last)
    stretches = read_stretches(run, span, ["passes"]) if span else []
    groups = [(s.place, _scored(unpack(s.columns[0], PASSES))) for s in stretches]
    known = [(place, each) for place, each in groups if len(each)]
    largest = max((int(each["num_scored"].max()) for _, each in known), default=0)
    tables = [pass_shares(each, max_k=min(largest, MAX_K)) for _, each in known]
    older = StepRollup.objects.filter(run=run, superseded_by=None, passes=b"")
    return {
        "num_older": older.exclude(groups=b"").count(),
        "columns": [
            {
                "first": span.ends(place)[0],
                "last": span.ends(place)[1],
                "num_groups": len(each),
            }
            for place, each in known
            if span
        ],
        "shares": [
            [_short(table[k]) for table in tables] for k in range(min(largest, MAX_K))
        ],
    }


def _scored(groups: Records) -> Records:
    found: Records = groups[groups["num_scored"] > 0]
    return found


def pass_shares(groups: Records, *, max_k: int) -> Numbers:
    """pass@1 … pass@max_k, [max_k]: of n completions with c right the unbiased estimate

        1 - C(n - c, k) / C(n, k) = 1 - Π_{i<k} (n - c - i) / (n - i)

    (arXiv:2107.03374), as the mean over the groups with n ≥ k; NaN where there is none.
    """
    pairs = np.stack([groups["num_scored"], groups["num_right"]]).astype(np.float64)
    (n, c), counts = np.unique(pairs, axis=1, return_counts=True)
    none_right = np.ones_like(n)
    found = np.full(max_k, np.nan)
    for k in range(1, max_k + 1):
        has_k = n >= k
        if not has_k.any():
            break
        draws = np.where(has_k, n - k + 1, 1)
        none_right = none_right * np.maximum(n - c - k + 1, 0) / draws
        weights = counts[has_k]
        found[k - 1] = 1 - (none_right[has_k] * weights).sum() / weights.sum()
    return found


def _short(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.4g}")
