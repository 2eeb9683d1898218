"""A chart as pages get it: a Plotly figure whose traces say what they show.

A trace's `meta.terms` is a sum of metrics, [[metric, factor], …] plus `meta.constant`;
`meta.each` instead names a family of metrics (a regular expression), one trace each,
with `meta.band` inside its interval where one is known (<metric>/low and /high).
Colours are CSS variables, so a chart follows the theme.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    id: str
    title: str
    about: str  # one line under the title
    figure: dict[str, Any]
    # Stays away until it has values: not every run measures it.
    is_optional: bool = False


def chart(
    title: str,
    about: str,
    traces: Sequence[Any] = (),
    *,
    y: str,
    y_axis: dict[str, Any] | None = None,
    only: bool = False,  # when it has values
) -> Chart:
    data = list(traces) or [line(title, color=1)]
    named = [trace for trace in data if trace.showlegend is not False]
    tree = figure_tree(
        data,
        title={"text": title},
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": y}, "exponentformat": "e", **(y_axis or {})},
        hovermode="x unified",
        showlegend=len(named) > 1 or named[0].name is None,
    )
    return Chart(
        id=chart_id(title), title=title, about=about, figure=tree, is_optional=only
    )


def figure_tree(traces: Sequence[Any], **layout: Any) -> dict[str, Any]:
    """As JSON, and without Plotly's template: the page has its own colours."""
    figure = go.Figure(data=traces)
    figure.update_layout(template=go.layout.Template(), **layout)
    tree: dict[str, Any] = figure.to_plotly_json()
    del tree["layout"]["template"]
    return tree


def chart_id(title: str) -> str:
    """Part of an address: #chart-kl-mean."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-_")


def hover(unit: str) -> str:
    return "%{y:.4~g}" + unit


def line(
    metric: str, *, name: str | None = None, color: int, smooth: bool = True
) -> go.Scatter:
    return go.Scatter(
        name=name or metric,
        mode="lines",
        line={"color": f"var(--cohort-series-{(color - 1) % 10 + 1})", "width": 2},
        hovertemplate=hover(""),
        meta={"terms": [[metric, 1]], "smooth": smooth},
    )


def edge(metric: str, spread: str, side: int) -> go.Scatter:
    """One edge of a band; the upper one fills down to the lower."""
    return go.Scatter(
        name=f"{metric} {'+' if side > 0 else '-'} {spread}",
        mode="lines",
        line={"width": 0},
        fill="tonexty" if side > 0 else None,
        fillcolor="var(--cohort-series-1)",
        hoverinfo="skip",
        showlegend=False,
        meta={"terms": [[metric, 1], [spread, side]], "smooth": True, "alpha": 0.16},
    )


def share(
    name: str, color: str, terms: list[list[Any]], *, constant: float = 0
) -> go.Scatter:
    share = layer(name, color, terms, unit="", constant=constant)
    share.hovertemplate = "%{y:.1%}"
    return share


def layer(
    name: str, color: str, terms: list[list[Any]], *, unit: str, constant: float = 0
) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="lines",
        stackgroup="one",
        line={"width": 0.5, "color": f"var(--cohort-{color})"},
        fillcolor=f"var(--cohort-{color})",
        hovertemplate=hover(unit),
        meta={"terms": terms, "constant": constant, "smooth": True, "alpha": 0.75},
    )
