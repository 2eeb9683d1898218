"""What one step of training did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.algorithm.advantages import Floats
from trainer.gathering import Gathered
from trainer.model.microbatches import Minibatch
from trainer.model.token_values import TokenValues
from trainer.types import Group
from trainer.updates import UpdateResult


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """A step, for the journal and for whoever looks for what went wrong in it."""

    gathered: Gathered
    minibatches: Sequence[Minibatch]
    own_prompts: frozenset[int]  # rows of the step's own prompts, without refills
    advantages: Floats  # [P, G] of the groups trained on
    updates: Sequence[UpdateResult]
    learning_rate: float
    kl_coef: float | None  # None: no KL is weighed
    staleness: float | None  # updates between sampling and use; None: not sampled
    is_on_policy: bool  # the engine sampled with the weights of the step's beginning
    is_one_off: bool = False  # it did with those of the step before
    # Of each completion of some groups, by the group's place among those trained on.
    tokens: Mapping[int, Sequence[TokenValues]] = field(default_factory=dict)

    @property
    def first_round(self) -> list[Group]:
        """The groups of the step's own prompts, whether trained on or dropped.

        What refilling adds was chosen for having a signal; counting it would make the
        charts of a run jump when refilling is switched on.
        """
        sampled = [*self.gathered.groups, *self.gathered.dropped]
        return [group for group in sampled if group.prompt.index in self.own_prompts]
