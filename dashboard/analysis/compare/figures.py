"""The figures of a comparison: overlaid curves, confidence bands, their differences.

They are drawn in the browser. Colours are CSS variables, so a chart follows the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from dashboard.analysis.compare.points import AXES
from dashboard.analysis.compare.seeds import ConfidenceBand, RunSet
from dashboard.analysis.compare.selection import LineStyle
from dashboard.analysis.compare.series import Series
from dashboard.analysis.statistics import Array
from dashboard.runs.models import Run
from trainer.metric_names import title_of

STRIP = {"domain": [0, 0.12], "title": {"text": "n"}, "rangemode": "tozero"}
ALPHA = 0.16
NUM_COUNTS = 4  # ticks of the strip


def overlay(
    runs: Sequence[Run],
    series: Sequence[Series],
    styles: dict[int, LineStyle],
    *,
    metric: str,
    axis: str,
    smoothing: float,
    log_y: bool,
) -> dict[str, Any]:
    """Draw one line per run; under a smoothed line, the measured one, faint."""
    drawn = list(zip(runs, series, strict=True))
    faint = drawn if smoothing > 0 else []
    layout = {
        "xaxis": {"title": {"text": AXES[axis]}},
        "yaxis": y_axis(_label(metric), type="log" if log_y else "linear"),
        "hovermode": "x unified" if axis == "step" else "closest",
        "showlegend": False,  # the chips above are the legend, with links
        # Zoom outlives a change of smoothing, not one of what is measured.
        "uirevision": f"{metric} {axis} {log_y}",
    }
    raw = [
        {
            **_xy(line, line.values),
            "line": {"color": colour_of(styles[run.pk]), "width": 1},
            "opacity": 0.28,
            "hoverinfo": "skip",
        }
        for run, line in faint
    ]
    lines = [
        _line(run, line, styles[run.pk], bold=run is runs[0]) for run, line in drawn
    ]
    return {"data": raw + lines, "layout": layout}


def _line(run: Run, series: Series, style: LineStyle, *, bold: bool) -> dict[str, Any]:
    few = len(series.x) < 30
    return {
        **_xy(series, series.smoothed),
        "name": escape_label(run.name),
        "mode": "lines+markers" if few else "lines",
        "line": {
            "color": colour_of(style),
            "width": 3 if bold else 2,
            "dash": style.dash,
        },
        "marker": {"size": 5, "color": colour_of(style)},
        "text": _xy(series, series.values)["y"],
        "hovertemplate": "%{y:.3~g}"
        if series.smoothed == series.values
        else "%{text:.3~g}<br>smoothed %{y:.3~g}",
        "customdata": series.steps,
        "meta": {"run": run.pk},
    }


def _xy(series: Series, values: Sequence[float]) -> dict[str, Any]:
    # Six digits are more than a screen shows, and half of what is sent.
    y = [float(f"{value:.6g}") for value in values]
    return {"type": "scatter", "mode": "lines", "x": series.x, "y": y}


def draw_small(
    sets: Sequence[RunSet],
    lines: Sequence[Series],
    bands: Sequence[ConfidenceBand],
    styles: dict[int, LineStyle],
    *,
    members: Sequence[tuple[RunSet, Run, Series]],
    axis: str,
) -> list[dict[str, Any]]:
    """Draw a small chart: each run's line, or a set's band and its mean."""
    traces = _members(members, styles)
    limits = _limits(bands) if any(len(band.at) for band in bands) else None
    for run_set, series in zip(sets, lines, strict=False):
        line = _line(run_set.run, series, styles[run_set.pk], bold=run_set is sets[0])
        traces.append(
            {
                **line,
                "x": (
                    [int(at) for at in series.x] if axis == "step" else list(series.x)
                ),
            }
        )
    for run_set, band in zip(sets, bands, strict=False):
        if not (run_set.has_band or run_set.is_single):
            continue
        for trace in _band(
            run_set.label,
            band,
            styles[run_set.pk],
            axis,
            bold=run_set is sets[0],
            within=limits,
        ):
            trace.pop("text", None)  # of the larger chart
            if "hoverinfo" not in trace:
                trace["hovertemplate"] = "%{y:.3~g}"
                trace["meta"] = {"run": run_set.pk}
            traces.append(trace)
    return traces


def _members(
    members: Sequence[tuple[RunSet, Run, Series]], styles: dict[int, LineStyle]
) -> list[dict[str, Any]]:
    """Draw a thin line for each run: opaque where its set has no band."""
    return [
        {
            **_line(run, series, styles[run_set.pk], bold=False),
            "line": {"color": colour_of(styles[run_set.pk]), "width": 1},
            **({"opacity": 0.35, "hoverinfo": "skip"} if run_set.has_band else {}),
        }
        for run_set, run, series in members
    ]


def _limits(bands: Sequence[ConfidenceBand]) -> tuple[float, float]:
    """Find the range of the means, widened by half on each side: an interval may leave
    the values that a metric can have.
    """
    values = np.concatenate([band.estimate.value for band in bands])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = (high - low) / 2
    return (max(low - room, 0.0) if low >= 0 else low - room), high + room


def y_axis(title: str, **more: Any) -> dict[str, Any]:
    # Powers of ten as Plotly writes them by itself take inline styles.
    return {"title": {"text": title}, "exponentformat": "e", **more}


def escape_label(text: str) -> str:
    """Plotly reads labels as a kind of HTML, links and line breaks included."""
    return escape(text, quote=False)


def _label(metric: str) -> str:
    return escape_label(title_of(metric, with_unit=True))


def colour_of(style: LineStyle) -> str:
    return f"var(--cohort-series-{style.colour})"


def draw_bands(
    sets: Sequence[RunSet],
    bands: Sequence[ConfidenceBand],
    styles: dict[int, LineStyle],
    *,
    members: Sequence[tuple[RunSet, Run, Series]],
    metric: str,
    axis: str,
    log_y: bool,
) -> dict[str, Any]:
    """Draw each set's band, line and number of runs; single runs are drawn
    behind them.
    """
    traces = _members(members, styles)
    low, high = _limits(bands) if any(len(band.at) for band in bands) else (0.0, 0.0)
    floor = _lowest_above_0(bands) if log_y else None
    for run_set, band in zip(sets, bands, strict=True):
        traces += _band(
            run_set.label,
            band,
            styles[run_set.pk],
            axis,
            bold=run_set is sets[0],
            within=(low if floor is None else max(low, floor), high),
            has_interval=run_set.has_band,
        )
        traces.append(_counts(run_set.label, band, styles[run_set.pk], axis))
    most = max((len(run_set.runs) for run_set in sets), default=1)
    strip = {**STRIP, "range": [0, most * 1.15], "dtick": -(-most // NUM_COUNTS)}
    layout = {
        "xaxis": {"title": {"text": AXES[axis]}, "anchor": "y2"},
        "yaxis": y_axis(
            _label(metric), type="log" if log_y else "linear", domain=[0.2, 1]
        ),
        "yaxis2": strip,
        "hovermode": "x unified" if axis == "step" else "closest",
        "showlegend": False,
        "uirevision": f"{metric} {axis} {log_y}",
    }
    return {"data": traces, "layout": layout}


def _lowest_above_0(bands: Sequence[ConfidenceBand]) -> float | None:
    """Find where bands that reach below 0 end on a logarithmic axis."""
    values = np.concatenate([band.estimate.value for band in bands])
    above = values[values > 0]
    return float(above.min()) if len(above) else None


def draw_differences(
    sets: Sequence[RunSet],
    differences: Sequence[ConfidenceBand],
    styles: dict[int, LineStyle],
    *,
    metric: str,
    axis: str,
) -> dict[str, Any]:
    """Draw the difference of each set but the first to the first."""
    traces: list[dict[str, Any]] = []
    for run_set, band in zip(sets[1:], differences, strict=True):
        traces += _band(
            f"{run_set.label} − {sets[0].label}",
            band,
            styles[run_set.pk],
            axis,
            bold=False,
        )
    zero = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 0,
        "y1": 0,
        "line": {"color": "var(--cohort-quiet)", "width": 1.5, "dash": "dash"},
    }
    layout = {
        "xaxis": {"title": {"text": AXES[axis]}},
        "yaxis": y_axis(f"Δ {_label(metric)}"),
        "shapes": [zero],
        "hovermode": "x unified" if axis == "step" else "closest",
        "showlegend": False,
        "uirevision": f"{metric} {axis}",
    }
    return {"data": traces, "layout": layout}


def _band(
    label: str,
    band: ConfidenceBand,
    style: LineStyle,
    axis: str,
    *,
    bold: bool,
    within: tuple[float, float] | None = None,
    has_interval: bool = True,
) -> list[dict[str, Any]]:
    """Draw a band and its line; a single run has no interval, so its band has
    no width.
    """
    name, value = escape_label(label), band.estimate.value
    edges = []
    if has_interval and np.isfinite(band.estimate.low).any():
        for word, ends in (("low", band.estimate.low), ("high", band.estimate.high)):
            drawn = np.where(np.isnan(ends), value, ends)
            if within is not None:
                drawn = np.clip(drawn, *within)
            edge = _trace(f"{name}, 95% {word}", band, drawn, axis)
            edge |= {"line": {"width": 0}, "hoverinfo": "skip", "meta": {}}
            if (drawn != ends).any():
                edge["meta"]["raw"] = _numbers(ends)  # what is saved as CSV
            edges.append(edge)
        edges[1] |= {"fill": "tonexty", "fillcolor": colour_of(style)}
        edges[1]["meta"]["alpha"] = ALPHA
    centre = _trace(name, band, value, axis)
    few = len(value) < 30
    centre |= {
        "mode": "lines+markers" if few else "lines",
        "line": {
            "color": colour_of(style),
            "width": 3 if bold else 2,
            "dash": style.dash,
        },
        "marker": {"size": 5, "color": colour_of(style)},
        "text": _hover_lines(band),
        "hovertemplate": "%{text}",
    }
    return [*edges, centre]


def _counts(
    label: str, band: ConfidenceBand, style: LineStyle, axis: str
) -> dict[str, Any]:
    num = band.estimate.num.astype(np.float64)
    return _trace(f"{escape_label(label)}, n", band, num, axis) | {
        "yaxis": "y2",
        "line": {
            "color": colour_of(style),
            "width": 2,
            "shape": "hv",
            "dash": style.dash,
        },
        "hoverinfo": "skip",
    }


def _trace(name: str, band: ConfidenceBand, y: Array, axis: str) -> dict[str, Any]:
    at = [float(f"{v:.9g}") for v in band.at.tolist()]
    x: list[Any] = [int(v) for v in at] if axis == "step" else at
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": _numbers(y),
        "customdata": x,
    }


def _numbers(values: Array) -> list[float | None]:
    """Six digits are more than a screen shows, and half of what is sent."""
    return [None if v != v else float(f"{v:.6g}") for v in values.tolist()]


def _hover_lines(band: ConfidenceBand) -> list[str]:
    estimate = band.estimate
    rows = zip(
        estimate.value.tolist(),
        estimate.low.tolist(),
        estimate.high.tolist(),
        estimate.num.tolist(),
        strict=True,
    )
    return [
        f"{value:.3g} ({low:.3g} … {high:.3g}), n {num}"
        if low == low  # no NaN
        else f"{value:.3g}, n {num}: no interval"
        for value, low, high, num in rows
    ]
