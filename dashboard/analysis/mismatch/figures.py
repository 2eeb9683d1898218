"""Charts of the gap between sampler and trainer. Colours are CSS variables.

They are Plotly's trees: to check them by its classes took a third of the page's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cohort.mismatch import NUM_POSITIONS, PROBABILITY_EDGES, round_numbers
from dashboard.analysis.mismatch.advice import Totals
from dashboard.completions.mismatch import Mismatch, Numbers, Records

MAX_POINTS = 2_000  # of the chart of completions
MAX_TICKS = 8  # of steps
MAX_DECADES = 5  # with a tick each
NUM_PARTS = 4  # of the run, a line each
# Names and colours of points; those above lie over the ones before.
SIGNS = (
    (0, "A = 0", "quiet"),
    (1, "A > 0", "series-1"),
    (-1, "A < 0", "series-2"),
)


def draw_steps(
    totals: Totals, ages: Numbers, *, rounding: float | None
) -> dict[str, Any]:
    """Draw the gap over steps, what rounding explains of it, and the age below."""
    steps = totals.mean.steps
    mode = "lines+markers" if len(steps) < 30 else "lines"
    named = (
        ("95th percentile of |Σd|", totals.p95_sum, 2),
        ("mean |d|", totals.mean, 1),
        ("KL", totals.kl, 3),
    )
    # A logarithmic axis has no 0; an exact sampler has nothing else.
    drawn = np.concatenate([series.values for _, series, _ in named])
    logs = np.log10(drawn[drawn > 0])
    is_log = len(logs) > 0
    traces = [
        _line(
            name,
            colour,
            steps,
            np.where(series.values > 0, series.values, math.nan)
            if is_log
            else series.values,
            mode=mode,
        )
        for name, series, colour in named
    ]
    if rounding is not None:
        ends = _line("mean |d| by rounding", 1, steps[[0, -1]], [rounding] * 2)
        ends["line"] |= {"dash": "dot", "width": 1}
        traces.append(ends)
    is_short = len(steps) <= MAX_TICKS
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "tickformat": ",d"}
        | ({"dtick": 1} if is_short else {"nticks": MAX_TICKS}),
        "yaxis": {
            "title": {"text": "nats"},
            "exponentformat": "e",
            **(
                {"type": "log", "dtick": max(1, math.ceil(np.ptp(logs) / MAX_DECADES))}
                if is_log
                else {"rangemode": "tozero"}
            ),
        },
        "hovermode": "x unified",
    }
    if np.isfinite(ages).any():
        age = _line("age", "quiet", steps, ages, mode=mode, yaxis="y2")
        age["line"]["shape"] = "hv"
        age["hovertemplate"] = "%{y} updates"
        traces.append(age)
        layout["yaxis"]["domain"] = [0.3, 1]
        layout["xaxis"]["anchor"] = "y2"
        layout["yaxis2"] = {
            "title": {"text": "age"},
            "domain": [0, 0.18],
            "rangemode": "tozero",
            "dtick": max(1, math.ceil(np.nanmax(ages) / 2)),
        }
    return _figure(traces, **layout)


def draw_positions(mismatch: Mismatch) -> dict[str, Any]:
    """Draw the gap by the position of a token, a line for each quarter of the run."""
    names = [f"{2**octave:,}" for octave in range(NUM_POSITIONS)]
    return _draw_bins(mismatch, mismatch.positions, names, "position, from")


def draw_probabilities(mismatch: Mismatch) -> dict[str, Any]:
    """Draw the gap by μ, a line for each quarter of the run."""
    names = [f"{edge:g}" for edge in (0, *PROBABILITY_EDGES)]
    return _draw_bins(mismatch, mismatch.probabilities, names, "μ, from")


def _draw_bins(
    mismatch: Mismatch, bins: Records, names: Sequence[str], title: str
) -> dict[str, Any]:
    num = len(mismatch.steps)
    parts = [part for part in np.array_split(np.arange(num), NUM_PARTS) if len(part)]
    # The last bins of short completions are empty in all steps.
    filled = np.flatnonzero(bins["num_tokens"].sum(axis=0))
    width = int(filled[-1]) + 1 if len(filled) else 1
    traces = []
    for colour, part in enumerate(parts, start=1):
        first, last = mismatch.steps[part[[0, -1]]].tolist()
        name = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
        counts, *sums = (
            bins[column][part].sum(axis=0, dtype=np.float64)[:width]
            for column in ("num_tokens", "absolute", "sum")
        )
        counts[counts == 0] = math.nan
        for words, values, dash in zip(
            ("mean |d|", "mean d"), sums, ("solid", "dot"), strict=True
        ):
            trace = _line(
                name,
                colour,
                names[:width],
                values / counts,
                mode="lines+markers",
                legendgroup=name,
                showlegend=dash == "solid",
                hovertemplate=f"{words} %{{y:.3~g}}, {name}<extra></extra>",
            )
            trace["line"]["dash"] = dash
            traces.append(trace)
    return _figure(
        traces,
        xaxis={"title": {"text": title}, "type": "category"},
        yaxis={"title": {"text": "nats per token"}, "exponentformat": "e"},
        hovermode="closest",
        showlegend=len(parts) > 1,
    )


def draw_completions(
    of_step: Mismatch, *, cap: float, geometric: float
) -> dict[str, Any]:
    """Draw Σd of each completion against its length, and two bounds of it.

    Independent gaps spread as √T, a bias as T: a bound of the product is level, that of
    the geometric mean a slope.
    """
    chosen = np.flatnonzero(of_step.completions["num_tokens"])
    if len(chosen) > MAX_POINTS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MAX_POINTS).astype(np.int64)]
    completions, places = of_step.completions[chosen], of_step.places[chosen]
    signs = np.sign(np.nan_to_num(completions["advantage"]))
    traces = [
        {
            "name": name,
            "mode": "markers",
            "marker": {"color": f"var(--cohort-{colour})", "size": 6, "opacity": 0.7},
            "x": completions["num_tokens"][part].tolist(),
            "y": round_numbers(completions["sum"][part]),
            "customdata": places[part].tolist(),
            "hovertemplate": "%{x} tokens, Σd %{y:.3~g} nats<extra></extra>",
        }
        for sign, name, colour in SIGNS
        if (part := signs == sign).any()
    ]
    longest = int(completions["num_tokens"].max(initial=1))
    product = math.log(cap)
    bounds = (
        (f"product of {cap:g}", product, product, "dash"),
        (f"geometric mask, {geometric:g}", 0.0, geometric * longest, "dot"),
    )
    for name, begin, end, dash in bounds:
        for side in (1, -1):
            trace = _line(name, "quiet", [0, longest], [side * begin, side * end])
            trace["line"] |= {"dash": dash, "width": 1}
            more = {"hoverinfo": "skip", "showlegend": side > 0, "legendgroup": name}
            traces.append(trace | more)
    return _figure(
        traces,
        xaxis={"title": {"text": "tokens"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "Σd, nats"}, "exponentformat": "e"},
        hovermode="closest",
    )


def _line(
    name: str,
    colour: int | str,
    x: ArrayLike,
    y: ArrayLike,
    **more: Any,
) -> dict[str, Any]:
    shade = f"series-{colour}" if isinstance(colour, int) else colour
    return {
        "name": name,
        "mode": "lines",
        "line": {"color": f"var(--cohort-{shade})", "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.3~g}",
        "x": np.asarray(x).tolist(),
        "y": round_numbers(y),
        **more,
    }


def _figure(traces: Sequence[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    return {
        "data": [{"type": "scatter", **trace} for trace in traces],
        "layout": {"showlegend": True} | layout,
    }
