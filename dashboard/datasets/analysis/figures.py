"""Tables and histograms of a version's statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.datasets.analysis.statistics import describe
from dashboard.datasets.models import TokenLengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicates:
    """Rows that are the same in some way, in groups."""

    title: str
    about: str
    num_more: int  # beyond the first of each group
    num_groups: int
    groups: list[tuple[list[int], int]]  # the first positions of each, and its size
    num_looked: int

    @property
    def num_shown(self) -> int:
        return len(self.groups)


KINDS = {
    "same_row": (
        "Same prompt and answer",
        "A run samples repeated rows more often.",
    ),
    "same_prompt": (
        "Same prompt, different answer",
        "The answers differ, so some may be wrong. Rows with the same answer are "
        "counted once.",
    ),
    "same_words": (
        "Same words, different prompt",
        "Prompts that differ only in case, white space or full-width forms. Identical "
        "prompts are counted once.",
    ),
    "near": (
        "Near duplicates",
        "Prompts that share at least 80% of their three-word shingles, by estimate. "
        "They may differ only in a number. Prompts with the same words are counted "
        "once.",
    ),
}


def list_duplicates(result: Mapping[str, Any]) -> list[Duplicates]:
    return [
        Duplicates(
            title=title,
            about=about,
            num_more=result[key]["num_more"],
            num_groups=result[key]["num_groups"],
            groups=list(zip(result[key]["shown"], result[key]["sizes"], strict=True)),
            num_looked=result[key].get("num_looked", result["num_rows"]),
        )
        for key, (title, about) in KINDS.items()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSummary:
    model: str
    limit: int
    num_looked: int
    num_longer: int  # than the limit
    lengths: dict[str, Any]  # as `describe` gives them

    @property
    def percent_longer(self) -> float:
        return 100 * self.num_longer / self.num_looked


def summarize_tokens(stored: TokenLengths, limit: int) -> TokenSummary:
    assert stored.result is not None
    pairs = stored.result["lengths"]
    lengths = np.repeat(
        np.array([length for length, _ in pairs], np.uint32),
        [count for _, count in pairs],
    )
    described = describe(lengths)
    assert described is not None, "a version has rows"
    return TokenSummary(
        model=stored.model,
        limit=limit,
        num_looked=len(lengths),
        num_longer=int((lengths > limit).sum()),
        lengths=described,
    )


def histogram(
    bins: Sequence[int], *, width: int, unit: str, limit: int | None = None
) -> dict[str, Any]:
    """Bars of `width` units each, the first from 0; a line where the limit is.

    The browser gives it its colours.
    """
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
