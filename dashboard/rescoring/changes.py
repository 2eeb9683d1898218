"""Completions whose place in their group is another one, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from django.core.paginator import Page, Paginator

from dashboard.rescoring.records import Numbers, Records
from dashboard.rescoring.summary import has_moved
from dashboard.runs.charts.chart import clip_all

PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class Change:
    """A completion before and after. None: no score, or no advantage."""

    step: int
    prompt: int
    position: int
    group_size: int
    old_rank: int
    new_rank: int
    old: float | None
    new: float | None
    old_advantage: float | None
    new_advantage: float | None

    @classmethod
    def of(cls, record: Records) -> Change:
        return cls(
            **{name: _plain(record[name]) for name in cls.__slots__}  # type: ignore[arg-type]  # of numpy's scalars
        )


def list_changes(completions: Records, *, show: str, sort: str, page: int) -> Page[int]:
    """Places in `completions`; among equals by step, prompt and position."""
    places = np.arange(len(completions))
    if show == "moved":
        places = places[has_moved(completions)]
    sizes = _sizes(completions[places])
    others = [sizes[name] for name in ("reward", "advantage", "rank") if name != sort]
    # The last key goes first.
    order = np.lexsort([places, *(-each for each in others), -sizes[sort]])
    found = places[order].tolist()
    return cast("Page[int]", Paginator(found, PER_PAGE).get_page(page))


def _sizes(completions: Records) -> dict[str, Numbers]:
    old, new = completions["old_rank"], completions["new_rank"]
    ranks = np.where((old > 0) & (new > 0), np.abs(new.astype(int) - old), 0)
    return {
        "rank": ranks.astype(np.float64),
        "advantage": _size(completions["old_advantage"], completions["new_advantage"]),
        "reward": _size(completions["old"], completions["new"]),
    }


def _size(old: Numbers, new: Numbers) -> Numbers:
    return np.nan_to_num(np.abs(clip_all(new) - clip_all(old)), nan=0.0)


def _plain(value: object) -> float | int | None:
    found = cast("np.generic", value).item()
    return None if isinstance(found, float) and not np.isfinite(found) else found
