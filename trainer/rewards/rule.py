"""What a rule is: a scoring function with parameters, bounds and two examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from trainer.rewards.sample import Sample, Unscorable


class Params(BaseModel):
    """Parameters of a rule: frozen, bounded; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Params)
# A score, or why there is none.
Outcome = float | Unscorable


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sample and parameters that show what a rule rewards.

    `others` are the completions beside it, for a rule that compares a group.
    """

    sample: Sample
    params: dict[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def group(self) -> list[Sample]:
        """The sample and those beside it, as they are judged."""
        others = (replace(self.sample, completion=text) for text in self.others)
        return [self.sample, *others]


def from_zero_to_one(params: Params) -> tuple[float, float]:
    return (0.0, 1.0)


Judge = Callable[[Sequence[Sample], P], Sequence[Outcome]]


def all_outcomes(
    judge: Judge[P], samples: Sequence[Sample], params: P
) -> list[Outcome]:
    """An outcome for each; what is raised instead is that of all."""
    try:
        found = list(judge(samples, params))
    except Unscorable as error:
        return [error] * len(samples)
    assert len(found) == len(samples), f"{len(found)} outcomes of {len(samples)}"
    return found


@dataclass(frozen=True, kw_only=True)
class Batching(Generic[P]):
    """How a rule that waits for others, as a model behind an address, is asked.

    `score(samples, params)` is given completions of any prompts, at most `most_at_once`
    of them, by several threads at the same time, at most `num_calls`. Groups that are
    complete while all calls are under way wait, and go together with the next one. So
    it must not compute for long itself; it runs in the trainer's process, where its
    secrets are.
    """

    score: Judge[P]
    most_at_once: Callable[[P], int]
    num_calls: Callable[[P], int]

    def ask(self, samples: Sequence[Sample], params: P) -> list[Outcome]:
        """An outcome for each completion, by calls that are not larger than allowed."""
        most = self.most_at_once(params)
        return [
            outcome
            for first in range(0, len(samples), most)
            for outcome in all_outcomes(
                self.score, samples[first : first + most], params
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[P]):
    """One way to judge completions; exactly one of the three is given.

    `score(sample, params)` judges one by itself. `score_group(samples, params)` judges
    all completions of one prompt, and `batching` says how to ask for those of many; the
    two give an outcome for each, in order.

    A score is a finite number within `bounds(params)`. Without one, a rule raises (or
    gives as outcome) `NotApplicable` when the row, not the completion, is at fault, and
    `Unscorable` when the judgement itself failed; and nothing else, whatever the
    completion holds: completions are untrusted text, parsed and never evaluated.

    `example_pass` scores the upper bound, or next to it where none but an empty
    completion could; `example_fail` scores less. One that `is_slow` takes longer than a
    completion's way to another process and back. One that `needs_sandbox` runs code, a
    completion at a time, and gives no score where no sandbox can be had.
    """

    kind: str
    title: str
    summary: str
    params_model: type[P]
    score: Callable[[Sample, P], float] | None = None
    score_group: Judge[P] | None = None
    batching: Batching[P] | None = None
    example_pass: Example
    example_fail: Example
    bounds: Callable[[P], tuple[float, float]] = from_zero_to_one
    is_slow: bool = False
    needs_sandbox: bool = False
    # Of a rule that asks a model, without asking it. The first raises ValueError where
    # a run could not: a key or the model is not there; the second NotApplicable where
    # the row has not what would be asked about.
    check: Callable[[P], None] | None = None
    check_row: Callable[[Sample, P], object] | None = None

    def __post_init__(self) -> None:
        ways = (self.score, self.score_group, self.batching)
        assert sum(way is not None for way in ways) == 1, self.kind
        assert self.score or not self.needs_sandbox, self.kind

    def judge(self, samples: Sequence[Sample], params: P) -> list[Outcome]:
        """An outcome for each completion of one prompt, in order."""
        if self.score is not None:
            return [self._judge_one(sample, params) for sample in samples]
        if self.batching is not None:
            return self.batching.ask(samples, params)
        assert self.score_group is not None
        return all_outcomes(self.score_group, samples, params)

    def _judge_one(self, sample: Sample, params: P) -> Outcome:
        assert self.score is not None
        try:
            return self.score(sample, params)
        except Unscorable as error:
            return error
