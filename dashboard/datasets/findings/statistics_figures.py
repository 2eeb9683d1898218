"""Histograms of lengths, defined here and coloured in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go


def histogram(
    bins: Sequence[int], *, width: int, unit: str, limit: int | None = None
) -> dict[str, Any]:
    """Bars of `width` units each, the first from 0; a line where the limit is."""
    starts = [index * width for index in range(len(bins))]
    names = [
        f"{start:,}" if width == 1 else f"{start:,}–{start + width - 1:,}"
        for start in starts
    ]
    middles = [start + (width - 1) / 2 for start in starts]
    figure = go.Figure(
        go.Bar(
            width=width,
            customdata=names,
            marker={"color": "var(--cohort-series-1)"},
            hovertemplate=f"%{{customdata}} {unit}: %{{y:,}} rows<extra></extra>",
        )
    )
    figure.update_layout(
        template=go.layout.Template(),  # an empty one: the page has its own colours
        xaxis={"title": {"text": unit}},
        yaxis={"title": {"text": "rows"}},
        bargap=0.05,
        showlegend=False,
    )
    if limit is not None and limit <= len(bins) * width:
        line = {"color": "var(--cohort-series-2)", "dash": "dash"}
        # Between what is allowed and what is too long.
        figure.add_vline(x=limit + 0.5, line=line)
    tree: dict[str, Any] = figure.to_plotly_json()
    del tree["layout"]["template"]
    tree["data"][0] |= {"x": middles, "y": list(bins)}
    return tree
