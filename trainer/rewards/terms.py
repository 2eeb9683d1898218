"""What a rule's term of a recipe may have beside its weight, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

NAME = r"^[a-z][a-z0-9_]{0,39}$"
LARGEST_WEIGHT = 1_000
# A step behind the end of every schedule.
AT_THE_END = 2**31 - 1


class Term(BaseModel):
    """A frozen part of a recipe; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Clip(Term):
    """Bounds of a score or a reward; None: there is none at that end."""

    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _ends_differ(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("A clip needs a low or a high bound. Set one.")
        low, high = self.ends
        if low >= high:
            raise ValueError(
                f"A clip's low bound must be less than its high bound; got {low:g} "
                f"and {high:g}. Swap them, or remove the clip."
            )
        return self

    @model_serializer(mode="wrap")
    def _given_ends(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if value is not None}

    @property
    def ends(self) -> tuple[float, float]:
        return (
            -math.inf if self.low is None else self.low,
            math.inf if self.high is None else self.high,
        )

    def apply(self, value: float) -> float:
        low, high = self.ends
        return min(max(value, low), high)


class Gate(Term):
    """A rule counts only where another rule's own score reaches a number.

    That score is taken as it is: before its clip, its weight and its own gate. Where
    it is lower, the rule's part is 0, or there is none (`otherwise`); where the other
    rule has no score, there is none either.

    >>> Gate(rule="format", at_least=1.0)
    """

    rule: str = Field(pattern=NAME)
    at_least: float = Field(ge=-1_000_000, le=1_000_000)
    otherwise: Literal["zero", "not_applicable"] = "zero"


class Turn(Term):
    """A weight, and the step that has it."""

    step: int = Field(ge=2, le=1_000_000_000)
    weight: float = Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)


class Schedule(Term):
    """The course of a weight from what it is at step 1.

    linear: evenly from one point to the next. steps: at once, at each point. Behind the
    last point it stays.

    >>> Schedule(points=(Turn(step=101, weight=0.0),)).weight_at(51, start=0.5)
    0.25
    """

    shape: Literal["linear", "steps"] = "linear"
    points: tuple[Turn, ...] = Field(min_length=1, max_length=20)

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        for before, after in pairwise(self.points):
            if after.step <= before.step:
                raise ValueError(
                    f"The steps of a schedule must increase; got {after.step:,} after "
                    f"{before.step:,}. Sort them."
                )
        return self

    def weight_at(self, step: int, *, start: float) -> float:
        """Return the weight at a step, counted from 1; `start` is the one at step 1."""
        before, weight = 1, start
        for point in self.points:
            if step < point.step:
                if self.shape == "steps" or step <= before:
                    return weight
                share = (step - before) / (point.step - before)
                return weight + share * (point.weight - weight)
            before, weight = point.step, point.weight
        return weight


def without_defaults(
    tree: dict[str, Any], **defaults: Any
) -> Iterator[tuple[str, Any]]:
    """Yield a tree's pairs, but for those that say what is so anyway.

    So a recipe that asks for none of this is written as it was before it could.
    """
    for name, value in tree.items():
        if name not in defaults or value != defaults[name]:
            yield name, value
