"""How rewards or advantages are distributed, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.runs.charts.chart import LARGEST, NOTE, has_clipped
from dashboard.runs.models import Run
from dashboard.samples.signals import ladder
from dashboard.samples.signals.columns import Stretch, find_span, read_stretches
from dashboard.samples.signals.records import BIN, QUANTILE, QUANTILES, unpack

MAX_CELLS = 40  # down; a lower one could not be seen
KINDS = ("reward", "advantage")


def read_distribution(
    run: Run, kind: str, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Two queries. `counts[i][j]` of column i lie between edges[j] and edges[j + 1].

    Quantiles of a column of several steps: the lowest and the highest of all its
    values, and between them the mean of its steps' own.
    """
    assert kind in KINDS, kind
    span = find_span(run, first=first, last=last)
    if span is None:
        return {"columns": [], "edges": [], "counts": [], "note": ""}
    names = [f"{kind}_quantiles", f"{kind}_histogram"]
    stretches = [s for s in read_stretches(run, span, names) if s.columns[0]]
    table = np.zeros((len(stretches), 2 * ladder.LAST_RUNG + 1), np.int64)
    for counts, stretch in zip(table, stretches, strict=True):
        bins = unpack(stretch.columns[1], BIN)
        rungs = bins["rung"].astype(np.int64) + ladder.LAST_RUNG
        counts += np.bincount(rungs, bins["count"], len(counts)).astype(np.int64)
    quantiles = [_quantiles(stretch) for stretch in stretches]
    edges, cells = _cells(table, quantiles)
    return {
        "columns": [
            {
                "first": span.ends(stretch.place)[0],
                "last": span.ends(stretch.place)[1],
                "quantiles": own,
                "num": int(counts.sum()),
            }
            for stretch, own, counts in zip(stretches, quantiles, table, strict=True)
        ],
        "quantiles": QUANTILES,
        "edges": edges,
        "counts": cells.tolist(),
        "note": NOTE if has_clipped([q[i] for q in quantiles for i in (0, -1)]) else "",
    }


def _quantiles(stretch: Stretch) -> list[float]:
    steps = unpack(stretch.columns[0], QUANTILE).reshape(-1, len(QUANTILES))
    # Rollups that are older than the bound may hold infinities.
    steps = np.clip(steps, -LARGEST, LARGEST)
    found = steps.mean(axis=0, dtype=np.float64)
    found[0], found[-1] = steps[:, 0].min(), steps[:, -1].max()
    return [float(f"{value:.6g}") for value in found.tolist()]


def _cells(
    table: NDArray[np.int64], quantiles: Sequence[Sequence[float]]
) -> tuple[list[float], NDArray[np.int64]]:
    """Rungs joined until each cell is at least 1/MAX_CELLS of the range in use."""
    used = table.sum(axis=0).nonzero()[0]
    if not len(used):
        return [], table[:, :0]
    rungs = range(int(used[0]) - ladder.LAST_RUNG, int(used[-1]) - ladder.LAST_RUNG + 1)
    limits = [ladder.bounds(rung) for rung in rungs]
    # Open ends are drawn as far as there are values.
    if math.isinf(limits[0][0]):
        limits[0] = min(q[0] for q in quantiles), limits[0][1]
    if math.isinf(limits[-1][1]):
        limits[-1] = limits[-1][0], max(q[-1] for q in quantiles)
    least = (limits[-1][1] - limits[0][0]) / MAX_CELLS
    edges, begins = [limits[0][0]], [0]
    for i, (low, _) in enumerate(limits[1:], start=1):
        # 0 stands with what is above it, so that an edge never passes through it.
        is_above_0 = rungs[i] == 1
        if low - edges[-1] >= least and low > edges[-1] and not is_above_0:
            edges.append(low)
            begins.append(i)
    top = limits[-1][1]
    edges.append(top if top > edges[-1] else edges[-1] + 0.01)
    part = table[:, used[0] : used[-1] + 1]
    return edges, np.add.reduceat(part, begins, axis=1)
