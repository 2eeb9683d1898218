"""The signal map: steps across, prompts down, each cell what its groups taught."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.runs.models import Run
from dashboard.samples.signals.columns import Span, find_span, read_stretches
from dashboard.samples.signals.records import GROUP, MIXED, SIGNALS, Records, unpack

MAX_ROWS = 80
ORDERS = ("dataset", "difficulty", "first_seen")
Places = NDArray[np.int64]


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
        packed = b"".join(stretch.columns[0] for stretch in stretches)
        groups = unpack(packed, GROUP)
    if span is None or not len(groups):
        return {"steps": [], "rows": [], "cells": _no_cells(), "num_prompts": 0}
    ranks, prompts = _rank(groups, order)
    rows_of = -(-len(prompts) // MAX_ROWS)  # prompts in a row
    return {
        "steps": _columns(groups, span),
        "rows": _rows(prompts, rows_of),
        "cells": _cells(groups, span, ranks // rows_of),
        "num_prompts": len(prompts),
        "num_groups": len(groups),
        "num_steps": int(span.last - span.first + 1),
        "steps_a_column": span.width,
        "prompts_a_row": rows_of,
    }


def _rank(groups: Records, order: str) -> tuple[Places, Places]:
    """Each group's prompt's place in the order, and the prompts in that order.

    difficulty: by the mean of the prompt's mean rewards, the lowest first; prompts that
    could never be scored come last.
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
    """Groups by signal of each stretch of steps, and the batch that could teach.

    num_effective = completions of groups with a signal that are in the batch, a step.
    """
    stretch = span.stretch_of(groups["step"].astype(np.int64))
    num, kinds = span.num_stretches, len(SIGNALS)
    counts = np.bincount(stretch * kinds + groups["signal"], minlength=num * kinds)
    teaches = (groups["signal"] == MIXED) & groups["is_trained"]
    effective = np.bincount(stretch, groups["num_completions"] * teaches, num)
    sampled = np.bincount(stretch, groups["num_completions"], num)
    steps = np.unique(groups["step"].astype(np.int64))
    num_steps = np.bincount(span.stretch_of(steps), minlength=num)
    return [
        {
            "first": span.ends(place)[0],
            "last": span.ends(place)[1],
            "signals": dict(zip(SIGNALS, by_signal, strict=True)),
            "num_effective": round(effective[place] / num_steps[place], 1),
            "num_sampled": round(sampled[place] / num_steps[place], 1),
        }
        for place, by_signal in enumerate(counts.reshape(num, kinds).tolist())
        if num_steps[place]
    ]


def _rows(prompts: Places, rows_of: int) -> list[dict[str, int]]:
    """The row's prompts: how many, and the numbers between which they lie."""
    parts = [prompts[i : i + rows_of] for i in range(0, len(prompts), rows_of)]
    return [
        {"num": len(part), "low": int(part.min()), "high": int(part.max())}
        for part in parts
    ]


CELL = ("column", "row", "band", "spread", "mean", "num", "step", "prompt")


def _no_cells() -> dict[str, list[Any]]:
    return {name: [] for name in CELL}


def _cells(groups: Records, span: Span, row: Places) -> dict[str, list[Any]]:
    """Lists by cell; `step` and `prompt` are of its newest group."""
    num_rows = int(row.max()) + 1
    column = span.stretch_of(groups["step"].astype(np.int64))
    at = column * num_rows + row
    size = span.num_stretches * num_rows
    num = np.bincount(at, minlength=size)
    newest = np.zeros(size, np.int64)
    newest[at] = np.arange(len(groups))
    scored = np.isfinite(groups["mean"])
    num_scored = np.maximum(np.bincount(at, scored, size), 1)
    spread = np.bincount(at, np.nan_to_num(groups["std"]), size) / num_scored
    mean = np.bincount(at, np.nan_to_num(groups["mean"]), size) / num_scored
    there = num.nonzero()[0]
    last = groups[newest[there]]
    # The place of a cell's column among those that are sent.
    sent = np.cumsum(np.bincount(column, minlength=span.num_stretches) > 0) - 1
    return {
        "column": sent[there // num_rows].tolist(),
        "row": (there % num_rows).tolist(),
        "band": _bands(groups, at, size)[there].tolist(),
        "spread": [float(f"{value:.3g}") for value in spread[there].tolist()],
        "mean": [float(f"{value:.3g}") for value in mean[there].tolist()],
        "num": num[there].tolist(),
        "step": last["step"].tolist(),
        "prompt": last["prompt"].tolist(),
    }


# By its place: SIGNALS, then this for dead groups of several kinds.
BANDS = (*SIGNALS, "dead")


def _bands(groups: Records, at: Places, size: int) -> NDArray[np.int64]:
    kinds = len(SIGNALS)
    place = at * kinds + groups["signal"]
    has = np.bincount(place, minlength=size * kinds).reshape(size, kinds) > 0
    only = np.where(has.sum(axis=1) == 1, has.argmax(axis=1), BANDS.index("dead"))
    return np.where(has[:, MIXED], MIXED, only)
