"""Results of a training step and of its updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from cohort.mismatch import GapMeasure
from trainer.algorithm.advantages import Floats
from trainer.algorithm.loss import BatchTotals
from trainer.algorithm.token_stats import TokenStatistics
from trainer.config import RunConfig
from trainer.curriculum import Draw
from trainer.gathering import Gathered
from trainer.model.microbatches import Minibatch
from trainer.model.reference import Reference
from trainer.model.token_values import TokenValues
from trainer.types import Group


class LossTerms(NamedTuple):
    """The terms that a minibatch's loss depends on beside its tokens."""

    config: RunConfig  # of the run or phase
    totals: BatchTotals  # of the minibatch, which its losses are divided by
    kl_coef: float | None = None  # in place of the configured one where it adapts
    entropy_coef: float | None = None  # likewise
    reference: Reference | None = None  # asked once more for a KL over the vocabulary


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The result of one update. `grad_norm` is the norm before clipping.

    `tokens` are the values of the completions that they were asked of, by their places
    in the step's batch.
    """

    loss: float
    grad_norm: float
    is_skipped: bool  # loss or gradient was not finite, the weights are as before
    num_sequences: int
    statistics: TokenStatistics
    tokens: Mapping[int, TokenValues] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The result of a pass over a process's micro-batches, beside gradients."""

    loss: torch.Tensor  # of one number, float64
    statistics: TokenStatistics
    # By place in the step's batch; None: of no completion of any process.
    tokens: Mapping[int, TokenValues] | None = None


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """A step, for the journal and for finding what went wrong in it."""

    gathered: Gathered
    minibatches: Sequence[Minibatch]
    own_prompts: frozenset[int]  # rows of the step's own prompts, without refills
    drawn: Draw | None = None  # how a curriculum chose them; None: it did not
    advantages: Floats  # [P, G] of the groups trained on
    updates: Sequence[UpdateResult]
    learning_rate: float
    kl_coef: float | None  # None: no KL is weighed
    entropy_coef: float | None  # None: it does not adapt
    # Updates between the weights that sampled and the step's first; None: not sampled.
    age: int | None
    staleness: float | None  # the same as a mean over the step's updates
    is_on_policy: bool  # the engine sampled with the weights of the step's beginning
    is_one_off: bool = False  # it did with those of the step before
    mismatch: GapMeasure | None = None  # of sampler and trainer; None: not asked for
    # Of each completion of some groups, by the group's place among those trained on.
    tokens: Mapping[int, Sequence[TokenValues]] = field(default_factory=dict)

    @property
    def first_round(self) -> list[Group]:
        """The groups of the step's own prompts, whether trained on or dropped.

        What refilling adds was chosen for having a signal; counting it would make the
        charts of a run jump when refilling is switched on.
        """
        return [
            group
            for group in self.gathered.sampled
            if group.prompt.index in self.own_prompts
        ]
