"""What is read of a file, whatever tool wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dashboard.datasets.row import Prompt

MAX_STEP = 2**31 - 1
LATEST_TIME = 253_402_300_800  # the year 10000


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One completion."""

    step: int
    prompt: Prompt
    completion: str
    answer: str | None = None
    reward: float | None = None  # the total, where the file has one
    scores: dict[str, float | None] = field(default_factory=dict)  # by column
    advantage: float | None = None
    num_tokens: int | None = None
    end_reason: str = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Values of a step, by Cohort's names."""

    step: int
    time: float | None  # seconds since 1970
    values: dict[str, float]


Item = Sample | Point


def as_tree(item: Item) -> dict[str, Any]:
    """For the spool; `from_tree` reads it."""
    tree = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return tree | {"is_point": isinstance(item, Point)}


def from_tree(tree: dict[str, Any]) -> Item:
    return Point(**tree) if tree.pop("is_point") else Sample(**tree)
