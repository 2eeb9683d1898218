"""What a rule is: a scoring function with parameters, bounds and two examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from trainer.rewards.sample import Sample


class Params(BaseModel):
    """Parameters of a rule: frozen, bounded; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Params)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sample and parameters that show what a rule rewards."""

    sample: Sample
    params: dict[str, Any] = field(default_factory=dict)


def from_zero_to_one(params: Params) -> tuple[float, float]:
    return (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[P]):
    """One way to judge a completion.

    `score(sample, params)` is a finite number within `bounds(params)`. It raises
    `Unscorable` when the row, not the completion, is at fault, and nothing else,
    whatever the completion holds: completions are untrusted text, parsed and never
    evaluated. `example_pass` scores the upper bound, or next to it where none but an
    empty completion could; `example_fail` scores less. One that `is_slow` takes longer
    than a completion's way to another process and back; one that `needs_sandbox` runs
    code, and gives no score where no sandbox can be had.
    """

    kind: str
    title: str
    summary: str
    params_model: type[P]
    score: Callable[[Sample, P], float]
    example_pass: Example
    example_fail: Example
    bounds: Callable[[P], tuple[float, float]] = from_zero_to_one
    is_slow: bool = False
    needs_sandbox: bool = False
