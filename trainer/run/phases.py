"""The state of a phase during training: reference, optimizer, order, KL weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.algorithm.entropy import AdaptiveEntropy
from trainer.algorithm.kl import AdaptiveKL
from trainer.algorithm.loss import BatchTotals
from trainer.config import ReferenceConfig, RunConfig
from trainer.config.run import PhaseConfig
from trainer.curriculum import Beliefs, Draw, draw
from trainer.data import DataOrder, Prompt
from trainer.gathering import SampledBatch
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy
from trainer.model.reference import (
    FrozenReference,
    KLSample,
    Reference,
    load_start,
    make_kl_sample,
    make_reference,
)
from trainer.output.checkpoint import restore_optimizer, saved_reference, saved_start
from trainer.rollout.engine import OnSlowed, RolloutEngine
from trainer.rollout.sources import CompletionSource, make_source, start_source
from trainer.run.outcome import LossTerms, UpdateResult
from trainer.seeding import derive


@dataclass(kw_only=True)
class PhaseState:
    """The state of a phase. Its steps count from 1 at its beginning."""

    phase_config: PhaseConfig
    order: DataOrder
    source: CompletionSource
    reference: Reference | None
    kl_sample: KLSample | None
    optimizer: Optimizer
    kl: AdaptiveKL | None  # a weight that follows its target
    entropy: AdaptiveEntropy | None  # likewise
    start: FrozenReference | None  # sampled from, where the run's own start is not
    beliefs: Beliefs | None = None  # of the run; None: it has no curriculum
    num_updates: int = 0

    @property
    def config(self) -> RunConfig:
        return self.phase_config.config

    @property
    def kl_coef(self) -> float:
        return self.config.loss.kl_coef if self.kl is None else self.kl.coef

    @property
    def entropy_coef(self) -> float | None:
        return None if self.entropy is None else self.entropy.weight

    def loss_terms(self, totals: BatchTotals) -> LossTerms:
        """Return the terms for a minibatch with these totals."""
        return LossTerms(
            self.config, totals, self.kl_coef, self.entropy_coef, self.reference
        )

    def place(self, step: int) -> int:
        """Return the number of one of the run's steps within the phase."""
        return step - self.phase_config.first_step + 1

    def draw(self, step: int) -> Draw | None:
        """Draw the prompts of a step by what is believed now; None: by their order."""
        config = self.config
        if self.beliefs is None or config.curriculum.kind == "off":
            return None
        return draw(
            self.beliefs,
            config.curriculum,
            prompts_per_step=config.rollout.prompts_per_step,
            group_size=config.rollout.group_size,
            seed=derive(config.seed, "curriculum", step),
            step=step,
        )

    def prompts(
        self,
        prompts: Sequence[Prompt],
        step: int,
        round: int,
        *,
        drawn: Draw | None = None,
    ) -> list[Prompt]:
        """Return the prompts of a round of sampling; 0 is the step's own."""
        if drawn is None:
            places = self.order.round_indices(self.place(step), round)
        else:
            places = drawn.round_places(round)
        return [prompts[place] for place in places]

    def samples_ahead(self, step: int) -> bool:
        """Return whether the next step's batch is sampled beside this one of the run's
        steps.

        Each phase begins again: another one's settings may be of other completions.
        """
        return self.config.rollout.one_step_off and step < self.phase_config.last_step

    def age_of(self, batch: SampledBatch) -> int | None:
        """Return updates between the weights that sampled a batch and those of now.

        A frozen start was sampled from as it was before the phase's first update.
        """
        match self.config.rollout.source:
            case "policy":
                return self.num_updates - batch.num_updates
            case "start":
                return self.num_updates
            case "dataset":
                return None

    def after_step(
        self, step: int, policy: Policy, updates: Sequence[UpdateResult]
    ) -> None:
        """Do what is due every so many steps, and adapt weights to KL and entropy."""
        place, config = self.place(step), self.config
        self.num_updates += len(updates)
        if self.reference is not None:
            self.reference.after_step(place, policy)
        every = config.optim.reset_every_steps
        if every > 0 and place % every == 0:
            self.optimizer.forget()
        # The first pass sees each completion once.
        first = updates[: len(updates) // self.config.optim.updates_per_batch]
        target = config.loss.entropy_target
        if self.entropy is not None and target is not None:
            parts = [u.statistics.entropy for u in first]
            entropies = torch.cat([part for part in parts if part is not None])
            self.entropy.update(entropies.double().mean().item(), target=target)
        if self.kl is not None:
            sums = [
                u.statistics.kl.double().nansum().item()
                for u in first
                if u.statistics.kl is not None
            ]
            num_completions = sum(result.num_sequences for result in first)
            self.kl.update(sum(sums) / num_completions, num_completions)

    def state_dict(self) -> dict[str, Any]:
        return {
            "kl": None if self.kl is None else {"coef": self.kl.coef},
            "num_updates": self.num_updates,
            **({"entropy": asdict(self.entropy)} if self.entropy else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # A fork may begin to follow a target in the middle.
        if self.kl is not None and state["kl"] is not None:
            self.kl.coef = state["kl"]["coef"]
        if self.entropy is not None and "entropy" in state:
            self.entropy = AdaptiveEntropy(**state["entropy"])
        self.num_updates = state["num_updates"]


def make_phase(
    phase: PhaseConfig,
    *,
    policy: Policy,
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    saved: Path | None,
    on_slowed: OnSlowed,
    beliefs: Beliefs | None = None,
) -> PhaseState:
    """Start a phase with the current policy, or resume it from a checkpoint.

    A phase has a schedule, a data order and an optimizer of its own, and its reference
    is made of the weights at its beginning.

    Args:
        phase: the phase.
        policy: the model that is trained.
        engine: samples from the policy.
        prompts: all that may be trained on.
        saved: a checkpoint within the phase, whose weights the policy has already.
        on_slowed: as `make_source` tells it.
        beliefs: about the prompts, of a run with a curriculum.
    """
    config = phase.config
    start = _start(phase, policy, saved)
    source: CompletionSource
    if start is None:
        source = make_source(
            config, policy=policy, engine=engine, prompts=prompts, on_slowed=on_slowed
        )
    else:
        source = start_source(start.policy, config, on_slowed=on_slowed)
    reference = make_reference(
        phase, policy, saved=None if saved is None else saved_reference(saved)
    )
    loss = config.loss
    state = PhaseState(
        phase_config=phase,
        order=data_order(phase, num_rows=len(prompts)),
        source=source,
        reference=reference,
        kl_sample=make_kl_sample(config, policy),
        optimizer=Optimizer(policy, config.optim),
        kl=None
        if loss.kl_target is None
        else AdaptiveKL(loss.kl_coef, loss.kl_target, loss.kl_horizon),
        entropy=None
        if loss.entropy_target is None
        else AdaptiveEntropy(loss.entropy_coef),
        start=start,
        beliefs=beliefs,
    )
    if saved is not None:
        restore_optimizer(saved, state.optimizer)
    return state


def data_order(phase: PhaseConfig, *, num_rows: int) -> DataOrder:
    """Return a phase's order of rows; the first one's is a run's without phases."""
    config, seed = phase.config, phase.config.seed
    if phase.goes_on:
        seed = derive(seed, "phase", phase.first_step)
    return DataOrder(
        num_rows=num_rows, prompts_per_step=config.rollout.prompts_per_step, seed=seed
    )


def _start(
    phase: PhaseConfig, policy: Policy, saved: Path | None
) -> FrozenReference | None:
    """Return the weights that a later phase began with, where it samples from them."""
    if not phase.goes_on or phase.config.rollout.source != "start":
        return None
    start = FrozenReference(
        load_start(phase.config, policy, will_move=True), ReferenceConfig()
    )
    if saved is None:
        start.become(policy)
    else:
        start.restore(saved_start(saved))
    return start
