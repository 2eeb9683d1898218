"""Where the time of steps goes, and how much of it to groups that teach nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.runs.charts.chart import LARGEST, NOTE, has_clipped
from dashboard.runs.models import Run
from dashboard.samples.signals.columns import find_span, read_stretches
from dashboard.samples.signals.records import ANATOMY, PHASES, SECONDS, unpack

OTHER = "other"


def read_anatomy(
    run: Run, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Two queries. Lists are by column: mean seconds a step of each phase, of what is
    in none of them, and of what was spent on dead groups (as rollup.anatomy has it).
    """
    span = find_span(run, first=first, last=last)
    stretches = read_stretches(run, span, ["anatomy"]) if span else []
    packed = [unpack(stretch.columns[0], SECONDS) for stretch in stretches]
    described = [
        (stretch.place, _describe(steps))
        for stretch, steps in zip(stretches, packed, strict=True)
    ]
    timed = [(place, each) for place, each in described if each["step"]]
    return {
        "columns": [
            {"first": span.ends(place)[0], "last": span.ends(place)[1]}
            for place, _ in timed
            if span
        ],
        "phases": [*PHASES, OTHER],
        "seconds": {
            name: [each[name] for _, each in timed] for name in (*PHASES, OTHER, "step")
        },
        "dead": [each["dead"] for _, each in timed],
        "dead_of": {
            name: [each[f"dead_{name}"] for _, each in timed] for name in PHASES[:4]
        },
        "note": NOTE if any(map(has_clipped, packed)) else "",
    }


def _describe(packed: Any) -> dict[str, float | None]:
    # Rollups that are older than the bound may hold infinities.
    steps = np.clip(packed.astype(np.float64), -LARGEST, LARGEST)
    steps = steps.reshape(-1, len(ANATOMY))
    means = dict(zip(ANATOMY, steps.mean(axis=0).tolist(), strict=True))
    in_phases = sum(means[name] for name in PHASES)
    total = max(means["step"], in_phases)
    found = {name: _short(means[name]) for name in PHASES}
    found |= {"step": _short(total), OTHER: _short(total - in_phases)}
    # Only the steps whose groups are known say what was lost.
    known = steps[np.isfinite(steps[:, -1])]
    lost = dict(zip(ANATOMY, known.mean(axis=0), strict=True)) if len(known) else {}
    dead = {name: lost.get(f"dead_{name}") for name in PHASES[:4]}
    found |= {f"dead_{name}": _short(value) for name, value in dead.items()}
    whole = sum(value for value in dead.values() if value is not None)
    return found | {"dead": _short(whole) if lost else None}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
