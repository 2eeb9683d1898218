"""Charts of the gap between sampler and trainer. Colours are CSS variables.

They are Plotly's trees: to check them by its classes took a third of the page's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cohort.mismatch import NUM_POSITIONS, PROBABILITY_EDGES
from dashboard.analysis.mismatch.advice import Totals
from dashboard.completions.mismatch import (
    Mismatch,
    Numbers,
    Records,
    StepMismatch,
)

MAX_POINTS = 2_000  # of the chart of completions
HOVER = "%{x} tokens, Σd %{y:.3~g} nats<extra></extra>"
NUM_PARTS = 4  # of the run, a line each
# Names and colours of points; those above lie over the ones before.
SIGNS = ((0, "A = 0", 0), (1, "A > 0", 1), (-1, "A < 0", 2))


def draw_steps(totals: Totals, ages: Numbers, *, rounding: float) -> dict[str, Any]:
    """Draw the gap over steps, what rounding explains of it, and the age below."""
    named = (
        ("95th percentile of |Σd|", totals.p95_sum, 2),
        ("mean |d|", totals.mean, 1),
        ("KL", totals.kl, 3),
    )
    has_ages = bool(np.isfinite(ages).any())
    drawn = np.concatenate([series.values for _, series, _ in named])
    is_log = bool((drawn > 0).any())
    mode = "lines+markers" if len(ages) < 30 else "lines"
    traces = [_line(name, colour, mode) for name, _, colour in named]
    if has_ages:
        traces.append(
            {
                "name": "age",
                "mode": mode,
                "yaxis": "y2",
                "line": {"color": "var(--cohort-quiet)", "width": 2, "shape": "hv"},
                "marker": {"size": 5},
                "hovertemplate": "%{y} updates",
            }
        )
    low = max(float(drawn[drawn > 0].min()), 1e-9) if is_log else 0.0
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {
            "title": {"text": "nats"},
            "type": "log" if is_log else "linear",
            "exponentformat": "e",
            "domain": [0.3, 1] if has_ages else [0, 1],
        },
        "shapes": [_band(min(low, rounding / 10), rounding)],
        "hovermode": "x unified",
        "showlegend": True,
    }
    if not is_log:
        layout["yaxis"]["rangemode"] = "tozero"
    if has_ages:
        layout["yaxis2"] = {
            "title": {"text": "age"},
            "domain": [0, 0.18],
            "rangemode": "tozero",
            "tickformat": "d",
            "nticks": 3,
        }
        layout["xaxis"]["anchor"] = "y2"
    figure = _figure(traces, **layout)
    for trace, (_, series, _) in zip(figure["data"], named, strict=False):
        trace["x"] = series.steps.tolist()
        # A logarithmic axis has no 0.
        shown = series.values > 0 if is_log else np.ones(len(series.values), bool)
        trace["y"] = _rounded(np.where(shown, series.values, math.nan))
    if has_ages:
        figure["data"][-1]["x"] = totals.mean.steps.tolist()
        figure["data"][-1]["y"] = _rounded(ages)
    return figure


def _band(low: float, high: float) -> dict[str, Any]:
    return {
        "type": "rect",
        "layer": "below",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": low,
        "y1": high,
        "opacity": 0.12,
        "line": {"width": 0},
        "fillcolor": "var(--cohort-series-1)",
    }


def draw_positions(mismatch: Mismatch) -> dict[str, Any]:
    """Draw the gap by the position of a token, a line for each quarter of the run."""
    names = [f"{2**octave:,}" for octave in range(NUM_POSITIONS)]
    return _draw_bins(mismatch, mismatch.positions, names, "token, from")


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
    traces, values = [], []
    for colour, part in enumerate(parts, start=1):
        first, last = mismatch.steps[part[[0, -1]]].tolist()
        name = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
        counts = bins["num_tokens"][part].sum(axis=0, dtype=np.float64)[:width]
        for column, words, dash in (
            ("absolute", "mean |d|", "solid"),
            ("sum", "mean d", "dot"),
        ):
            trace = _line(name, colour, "lines+markers")
            trace["line"]["dash"] = dash
            traces.append(
                trace
                | {
                    "legendgroup": name,
                    "showlegend": column == "absolute",
                    "hovertemplate": f"{words} %{{y:.3~g}}, {name}<extra></extra>",
                }
            )
            sums = bins[column][part].sum(axis=0, dtype=np.float64)[:width]
            values.append(
                np.divide(sums, counts, out=np.full(width, math.nan), where=counts > 0)
            )
    figure = _figure(
        traces,
        xaxis={"title": {"text": title}, "type": "category"},
        yaxis={"title": {"text": "nats per token"}, "exponentformat": "e"},
        hovermode="closest",
        showlegend=len(parts) > 1,
    )
    for trace, own in zip(figure["data"], values, strict=True):
        trace["x"], trace["y"] = list(names[:width]), _rounded(own)
    return figure


def draw_completions(
    of_step: StepMismatch, *, cap: float, geometric: float, by_reward: bool = False
) -> dict[str, Any]:
    """Draw Σd of each completion against its length, and two bounds of it.

    Independent gaps spread as √T, a bias as T: a bound of the product is level, that of
    the geometric mean a slope.
    """
    completions = of_step.step.completions
    chosen = np.flatnonzero(completions["num_tokens"])
    if len(chosen) > MAX_POINTS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MAX_POINTS).astype(np.int64)]
    lengths = completions["num_tokens"][chosen].astype(np.float64)
    sums = completions["sum"][chosen].astype(np.float64)
    signs = np.sign(np.nan_to_num(completions["advantage"][chosen]))
    longest = float(lengths.max(initial=1.0))
    product = math.log(cap)
    traces, parts = [], []
    if by_reward:
        traces.append(_points("completions", "var(--cohort-series-1)"))
        traces[0]["hovertemplate"] = f"reward %{{marker.color}}, {HOVER}"
        parts.append(np.ones(len(chosen), bool))
    else:
        for sign, name, colour in SIGNS:
            part = signs == sign
            if part.any():
                shade = f"series-{colour}" if colour else "quiet"
                traces.append(_points(name, f"var(--cohort-{shade})"))
                parts.append(part)
    num_points = len(traces)
    bounds = (
        (f"product of {cap:g}", [product, product], "dash"),
        (f"geometric mask, {geometric:g}", [0.0, geometric * longest], "dot"),
    )
    traces += [
        {
            "name": name,
            "mode": "lines",
            "line": {"color": "var(--cohort-quiet)", "width": 1, "dash": dash},
            "hoverinfo": "skip",
            "showlegend": is_upper,
            "legendgroup": name,
        }
        for name, _, dash in bounds
        for is_upper in (True, False)
    ]
    figure = _figure(
        traces,
        xaxis={"title": {"text": "tokens"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "Σd, nats"}, "exponentformat": "e"},
        hovermode="closest",
        showlegend=True,
    )
    known = np.stack([of_step.prompts[chosen], of_step.positions[chosen]], axis=1)
    for trace, part in zip(figure["data"][:num_points], parts, strict=True):
        trace["x"], trace["y"] = lengths[part].tolist(), _rounded(sums[part])
        trace["customdata"] = known[part].tolist()
    if by_reward:
        # Without a bar, which would need inline styles.
        figure["data"][0]["marker"] |= {
            "color": _rounded(of_step.rewards[chosen]),
            "colorscale": [
                [0, "var(--cohort-series-2)"],
                [1, "var(--cohort-series-1)"],
            ],
        }
    drawn = iter(figure["data"][num_points:])
    for _, ends, _ in bounds:
        for side in (1, -1):
            trace = next(drawn)
            trace["x"], trace["y"] = [0.0, longest], [side * end for end in ends]
    return figure


def _points(name: str, colour: str) -> dict[str, Any]:
    return {
        "name": name,
        "mode": "markers",
        "marker": {"color": colour, "size": 6, "opacity": 0.7, "line": {"width": 0}},
        "hovertemplate": HOVER,
    }


def _line(name: str, colour: int, mode: str) -> dict[str, Any]:
    return {
        "name": name,
        "mode": mode,
        "line": {"color": f"var(--cohort-series-{colour})", "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.3~g}",
    }


def _figure(traces: Sequence[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    return {"data": [{"type": "scatter", **each} for each in traces], "layout": layout}


def _rounded(values: Numbers) -> list[float | None]:
    return [
        float(f"{value:.4g}") if math.isfinite(value) else None
        for value in values.tolist()
    ]
