"""Data of the signal map, step timing and reward distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.records import (
    BIN,
    GROUP,
    LAST_BIN,
    MIXED,
    PHASES,
    QUANTILE,
    QUANTILES,
    SECONDS,
    SIGNALS,
    TIMINGS,
    Records,
    Span,
    Stretch,
    bin_bounds,
    find_span,
    read_stretches,
    shorten,
    unpack,
)
from dashboard.runs.charts.chart import LARGEST, NOTE, has_clipped
from dashboard.runs.charts.series import Buckets, read_steps
from dashboard.runs.models import Run

MAX_ROWS = 80
ORDERS = {  # of the map's rows
    "dataset": "prompt number",
    "difficulty": "mean reward, lowest first",
    "first_seen": "first sampled step",
}

OTHER = "other"
ENVIRONMENT = "environment"  # the part of sampling in which the sampler waited for it
IDLE = "time/environment_idle"
MAX_CELLS = 40  # down; a lower one could not be seen
KINDS = ("reward", "advantage")

CELL = ("column", "row", "band", "spread", "mean", "num", "step", "prompt")
# By its index: SIGNALS, then this for dead groups of several kinds.
BANDS = (*SIGNALS, "dead")

Indices = NDArray[np.int64]


def read_map(
    run: Run, *, order: str, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Two queries; at most MAX_STRETCHES × MAX_ROWS cells, empty ones left out.

    A cell's band is that of its groups where they agree, else "mixed" where one of
    them is, else "dead". Its spread is the mean of its groups' standard deviations.
    """
    assert order in ORDERS, order
    span = find_span(run, first=first, last=last)
    groups = np.empty(0, GROUP)
    if span is not None:
        stretches = read_stretches(run, span, ["groups"])
        groups = unpack(b"".join(stretch.columns[0] for stretch in stretches), GROUP)
    if span is None or not len(groups):
        return {
            "steps": [],
            "rows": [],
            "cells": {name: [] for name in CELL},
            "num_prompts": 0,
        }
    ranks, prompts = _rank(groups, order)
    rows_of = -(-len(prompts) // MAX_ROWS)  # prompts in a row
    # Number of prompts of the row, and their lowest and highest number.
    parts = [prompts[i : i + rows_of] for i in range(0, len(prompts), rows_of)]
    return {
        "steps": _columns(groups, span),
        "rows": [
            {"num": len(part), "low": int(part.min()), "high": int(part.max())}
            for part in parts
        ],
        "cells": _cells(groups, span, ranks // rows_of),
        "num_prompts": len(prompts),
        "num_groups": len(groups),
        "num_steps": int(span.last - span.first + 1),
        "steps_a_column": span.width,
        "prompts_a_row": rows_of,
    }


def _rank(groups: Records, order: str) -> tuple[Indices, Indices]:
    """Rank each group's prompt, and list the prompts by rank.

    difficulty: by the mean of the prompt's mean rewards, lowest first; prompts without
    a score are last.
    """
    prompts, which = np.unique(groups["prompt"], return_inverse=True)
    if order == "difficulty":
        scored = np.isfinite(groups["mean"])
        sums = np.bincount(which, np.where(scored, groups["mean"], 0), len(prompts))
        counts = np.bincount(which, scored, len(prompts))
        key = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    elif order == "first_seen":
        key = np.empty(len(prompts))
        # Groups come by rising step, and of several writes the last one stays.
        key[which[::-1]] = groups["step"][::-1]
    else:
        key = prompts.astype(np.float64)
    sequence = np.argsort(key, kind="stable")
    ranks = np.empty(len(prompts), np.int64)
    ranks[sequence] = np.arange(len(prompts))
    return ranks[which], prompts[sequence].astype(np.int64)


def _columns(groups: Records, span: Span) -> list[dict[str, Any]]:
    """Groups by signal for each stretch of steps, and the effective batch.

    num_effective: completions of trained groups with signal, per step.
    """
    stretch = span.stretch_of(groups["step"].astype(np.int64))
    num, kinds = span.num_stretches, len(SIGNALS)
    counts = np.bincount(stretch * kinds + groups["signal"], minlength=num * kinds)
    has_signal = (groups["signal"] == MIXED) & groups["is_trained"]
    effective = np.bincount(stretch, groups["num_completions"] * has_signal, num)
    sampled = np.bincount(stretch, groups["num_completions"], num)
    num_steps = np.bincount(
        span.stretch_of(np.unique(groups["step"].astype(np.int64))), minlength=num
    )
    return [
        {
            **span.column(index),
            "signals": dict(zip(SIGNALS, by_signal, strict=True)),
            "num_effective": round(effective[index] / num_steps[index], 1),
            "num_sampled": round(sampled[index] / num_steps[index], 1),
        }
        for index, by_signal in enumerate(counts.reshape(num, kinds).tolist())
        if num_steps[index]
    ]


def _cells(groups: Records, span: Span, row: Indices) -> dict[str, list[Any]]:
    """Lists by cell; `step` and `prompt` are of its newest group."""
    num_rows = int(row.max()) + 1
    column = span.stretch_of(groups["step"].astype(np.int64))
    at = column * num_rows + row
    size = span.num_stretches * num_rows
    num = np.bincount(at, minlength=size)
    newest = np.zeros(size, np.int64)
    newest[at] = np.arange(len(groups))
    num_scored = np.maximum(np.bincount(at, np.isfinite(groups["mean"]), size), 1)
    spread = np.bincount(at, np.nan_to_num(groups["std"]), size) / num_scored
    mean = np.bincount(at, np.nan_to_num(groups["mean"]), size) / num_scored
    there = num.nonzero()[0]
    last = groups[newest[there]]
    # The index of a cell's column among those that are sent.
    sent = np.cumsum(np.bincount(column, minlength=span.num_stretches) > 0) - 1
    kinds = len(SIGNALS)
    index = at * kinds + groups["signal"]
    has = np.bincount(index, minlength=size * kinds).reshape(size, kinds) > 0
    only = np.where(has.sum(axis=1) == 1, has.argmax(axis=1), BANDS.index("dead"))
    return {
        "column": sent[there // num_rows].tolist(),
        "row": (there % num_rows).tolist(),
        "band": np.where(has[:, MIXED], MIXED, only)[there].tolist(),
        "spread": [float(f"{value:.3g}") for value in spread[there].tolist()],
        "mean": [float(f"{value:.3g}") for value in mean[there].tolist()],
        "num": num[there].tolist(),
        "step": last["step"].tolist(),
        "prompt": last["prompt"].tolist(),
    }


def read_step_timing(
    run: Run, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Two queries, or three with an environment. Lists are by column: mean seconds per
    step of each phase, of the rest, and of groups without signal (rollup.step_timing).
    """
    span = find_span(run, first=first, last=last)
    stretches = read_stretches(run, span, ["anatomy"]) if span else []
    packed = [unpack(stretch.columns[0], SECONDS) for stretch in stretches]
    waits = _read_waits(run, span) if span and IDLE in run.metric_names else {}
    described = [
        (stretch.index, _describe(steps, waits.get(stretch.index, 0.0)))
        for stretch, steps in zip(stretches, packed, strict=True)
    ]
    timed = [(index, timing) for index, timing in described if timing["step"]]
    sampling = ("generate", ENVIRONMENT) if waits else ("generate",)
    return {
        "columns": [span.column(index) for index, _ in timed if span],
        "phases": [*sampling, *PHASES[1:], OTHER],
        "seconds": {
            name: [timing[name] for _, timing in timed]
            for name in (*sampling, *PHASES[1:], OTHER, "step")
        },
        "dead": [timing["dead"] for _, timing in timed],
        "dead_of": {
            name: [timing[f"dead_{name}"] for _, timing in timed]
            for name in (*sampling, *PHASES[1:4])
        },
        "note": NOTE if any(map(has_clipped, packed)) else "",
    }


def _read_waits(run: Run, span: Span) -> dict[int, float]:
    """Sum up the sampler's waits for environments by stretch."""
    within = {run.pk: Buckets(first=span.first, last=span.last)}
    waits = read_steps([run], [IDLE], within=within)[run.pk].metrics[IDLE]
    sums = np.bincount(span.stretch_of(waits.steps), waits.values)
    return dict(enumerate(sums.tolist()))


def _describe(packed: Any, wait: float) -> dict[str, float | None]:
    # Rollups that are older than the bound may hold infinities.
    steps = np.clip(packed.astype(np.float64), -LARGEST, LARGEST)
    steps = steps.reshape(-1, len(TIMINGS))
    means = dict(zip(TIMINGS, steps.mean(axis=0).tolist(), strict=True))
    in_phases = sum(means[name] for name in PHASES)
    total = max(means["step"], in_phases)
    # Only the steps whose groups are known say what was lost.
    measured = steps[np.isfinite(steps[:, -1])]
    lost = dict(
        zip(
            TIMINGS,
            measured.mean(axis=0) if len(measured) else [math.nan] * len(TIMINGS),
            strict=True,
        )
    )
    dead = {name: lost[f"dead_{name}"] for name in PHASES[:4]}
    # Of a batch that was sampled ahead, the run waits for less.
    sampling = len(steps) * means["generate"]
    share = min(wait / sampling, 1.0) if sampling > 0 else 0.0
    for seconds in (means, dead):
        seconds[ENVIRONMENT] = seconds["generate"] * share
        seconds["generate"] -= seconds[ENVIRONMENT]
    return (
        {name: shorten(means[name]) for name in (*PHASES, ENVIRONMENT)}
        | {"step": shorten(total), OTHER: shorten(total - in_phases)}
        | {f"dead_{name}": shorten(value) for name, value in dead.items()}
        | {"dead": shorten(sum(dead.values()))}
    )


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
    stretches = [
        s
        for s in read_stretches(run, span, [f"{kind}_quantiles", f"{kind}_histogram"])
        if s.columns[0]
    ]
    table = np.zeros((len(stretches), 2 * LAST_BIN + 1), np.int64)
    for counts, stretch in zip(table, stretches, strict=True):
        counted = unpack(stretch.columns[1], BIN)
        counts += np.bincount(
            counted["bin"].astype(np.int64) + LAST_BIN, counted["count"], len(counts)
        ).astype(np.int64)
    quantiles = [_quantiles(stretch) for stretch in stretches]
    edges, cells = _quantile_cells(table, quantiles)
    return {
        "columns": [
            {
                **span.column(stretch.index),
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


def seen_rewards(run: Run) -> tuple[float, float] | None:
    """Find the lowest and the highest reward of its completions, if it has any."""
    packed = StepRollup.objects.filter(run=run, superseded_by=None).values_list(
        "reward_quantiles", flat=True
    )
    rewards = np.frombuffer(b"".join(map(bytes, packed)), QUANTILE)
    return (rewards.min().item(), rewards.max().item()) if rewards.size else None


def _quantiles(stretch: Stretch) -> list[float]:
    steps = unpack(stretch.columns[0], QUANTILE).reshape(-1, len(QUANTILES))
    # Rollups that are older than the bound may hold infinities.
    steps = np.clip(steps, -LARGEST, LARGEST)
    quantiles = steps.mean(axis=0, dtype=np.float64)
    quantiles[0], quantiles[-1] = steps[:, 0].min(), steps[:, -1].max()
    return [float(f"{value:.6g}") for value in quantiles.tolist()]


def _quantile_cells(
    table: NDArray[np.int64], quantiles: Sequence[Sequence[float]]
) -> tuple[list[float], NDArray[np.int64]]:
    """Bins joined until each cell is at least 1/MAX_CELLS of the range in use."""
    used = table.sum(axis=0).nonzero()[0]
    if not len(used):
        return [], table[:, :0]
    bins = range(int(used[0]) - LAST_BIN, int(used[-1]) - LAST_BIN + 1)
    limits = [bin_bounds(number) for number in bins]
    # Open ends are drawn up to the extreme values.
    if math.isinf(limits[0][0]):
        limits[0] = min(q[0] for q in quantiles), limits[0][1]
    if math.isinf(limits[-1][1]):
        limits[-1] = limits[-1][0], max(q[-1] for q in quantiles)
    least = (limits[-1][1] - limits[0][0]) / MAX_CELLS
    edges, begins = [limits[0][0]], [0]
    for i, (low, _) in enumerate(limits[1:], start=1):
        # 0 stands with what is above it, so that an edge never passes through it.
        is_above_0 = bins[i] == 1
        if low - edges[-1] >= least and low > edges[-1] and not is_above_0:
            edges.append(low)
            begins.append(i)
    top = limits[-1][1]
    edges.append(top if top > edges[-1] else edges[-1] + 0.01)
    return edges, np.add.reduceat(table[:, used[0] : used[-1] + 1], begins, axis=1)
