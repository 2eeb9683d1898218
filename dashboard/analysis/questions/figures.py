"""The chart of a question: its first label's share by steps."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.analysis.questions.results import Result
from dashboard.runs.charts.chart import figure_tree

SMALLEST_TOP = 0.1  # of the axis


def draw_windows(result: Result, label: str) -> dict[str, Any]:
    """Draw the share as the judge sees it, dotted, and corrected with its band."""
    windows = result.estimate.windows
    spans = [result.steps[window] for window in windows]
    middles = [(first + last) / 2 for first, last in spans]
    named = [
        f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
        for first, last in spans
    ]
    corrected = [share for _, share in windows.values()]
    top = max(
        [SMALLEST_TOP, *(raw.value for raw, _ in windows.values())]
        + [share.high for share in corrected if share]
    )
    traces = []
    if corrected and all(corrected):
        traces += _band(middles, corrected)
        traces.append(
            go.Scatter(
                name="corrected",
                x=middles,
                y=[share.value for share in corrected if share],
                text=named,
                mode="lines+markers",
                line={"color": "var(--cohort-series-1)", "width": 2},
                hovertemplate="%{text}: %{y:.3~p}",
            )
        )
    traces.append(
        go.Scatter(
            name="as the judge sees it",
            x=middles,
            y=[raw.value for raw, _ in windows.values()],
            text=named,
            mode="lines+markers",
            line={"color": "var(--cohort-quiet)", "width": 1, "dash": "dot"},
            hovertemplate="%{text}: %{y:.3~p}",
        )
    )
    return figure_tree(
        traces,
        xaxis={"title": {"text": "step"}},
        yaxis={
            "title": {"text": f"share of {label}"},
            "tickformat": ".0%",
            "range": [0, 1.05 * top],
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )


def _band(middles: list[float], shares: list[Any]) -> list[go.Scatter]:
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        go.Scatter(x=middles, y=[s.low for s in shares], showlegend=False, **edge),
        go.Scatter(
            x=middles,
            y=[s.high for s in shares],
            name="95% interval",
            fill="tonexty",
            fillcolor="var(--cohort-series-1)",
            meta={"alpha": 0.16},
            **edge,
        ),
    ]
