"""How much memory a run needs, from its configuration and its model's sizes alone.

The web half may ask before there is any model, so no torch is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer.config import RunConfig
from trainer.config.run import Stage
from trainer.footprint import Footprint
from trainer.model_sizes import (
    Dimensions,
    RewardWeights,
    dimensions_of,
    read_dimensions,
    weigh_reward_models,
)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes, by what holds them; of each process, where there are several.

    Sampling and updating take turns, so the total is what is always held and the
    larger of the two; one step off it is both. Left out: the program itself, CUDA's own
    (about half a GB, as much again for reward models, which have a process of their
    own), and what an allocator loses between its blocks.
    """

    first_step: int  # of the phase that it is of
    weights: int
    master_weights: int  # float32 copies of weights kept in less, or a process's part
    optimizer: int
    reference: int
    engine: int  # vLLM's own copy of the weights, and its cache
    snapshot: int  # the copy that is sampled from, or sent, while the policy is trained
    gradients: int
    activations: int  # kept for the backward pass of one micro-batch
    logits: int  # of the chunk being computed, and those kept for the backward pass
    kv_cache: int
    sampling: int  # logits of the token being drawn
    sleeping_engine: int  # vLLM, where it gives its memory back for an update
    ppo_critic: int  # what PPO would add for a critic of the policy's size
    reward_models: int = 0  # weights of those beside the policy
    reward_models_elsewhere: int = 0  # on the other device, so no part of the total
    unknown_reward_models: tuple[str, ...] = ()  # paths; not counted
    is_one_step_off: bool = False  # it samples and updates at the same time

    @property
    def always(self) -> int:
        held = self.weights + self.master_weights + self.optimizer + self.reference
        return held + self.engine + self.snapshot + self.reward_models

    @property
    def while_sampling(self) -> int:
        return self.kv_cache + self.sampling + self.sleeping_engine

    @property
    def while_updating(self) -> int:
        return self.gradients + self.activations + self.logits

    @property
    def total(self) -> int:
        if self.is_one_step_off:
            return self.always + self.while_sampling + self.while_updating
        return self.always + max(self.while_sampling, self.while_updating)


def estimate(
    config: RunConfig,
    model_config: Mapping[str, Any] | None = None,
    *,
    on_gpu: bool = False,
    largest_set: int = 0,
) -> MemoryEstimate:
    """What a run holds at its peak, if every prompt and completion were of full length.

    Of a run in phases, what the phase holds that needs the most.

    Args:
        config: of the run.
        model_config: the model's config.json; None: read from the folder model.path.
        on_gpu: what "auto" means for device and number format.
        largest_set: rows of the largest of `evaluation.sets`, whose files need not be
            here.

    Raises:
        ValueError: the model's sizes are not known.
    """
    if model_config is None:
        sizes = read_dimensions(config.model.path)
    else:
        sizes = dimensions_of(model_config)
    weighed = weigh_reward_models(config, on_gpu=on_gpu)
    return max(
        (
            _of_stage(
                stage,
                sizes,
                weighed,
                on_gpu=on_gpu,
                has_snapshot=config.has_snapshot,
                largest_set=largest_set,
            )
            for stage in config.stages
        ),
        key=lambda found: found.total,
    )


def _of_stage(
    stage: Stage,
    sizes: Dimensions,
    weighed: RewardWeights,
    *,
    on_gpu: bool,
    has_snapshot: bool,
    largest_set: int,
) -> MemoryEstimate:
    model = Footprint(sizes, stage, on_gpu=on_gpu, largest_set=largest_set)
    # A value head is a single row, so of the embeddings the critic has the input's.
    critic = Footprint(replace(sizes, is_tied=True), stage, on_gpu=on_gpu)
    sleeps = on_gpu and stage.config.rollout.sleep
    return MemoryEstimate(
        first_step=stage.first_step,
        weights=model.weights,
        master_weights=model.master_weights,
        optimizer=model.optimizer,
        reference=model.reference,
        engine=0 if sleeps else model.engine,
        sleeping_engine=model.engine if sleeps else 0,
        snapshot=model.snapshot if has_snapshot else 0,
        gradients=model.gradients,
        activations=model.activations,
        logits=model.logits,
        kv_cache=model.kv_cache,
        sampling=model.sampling,
        ppo_critic=critic.weights
        + critic.master_weights
        + critic.optimizer
        + critic.gradients
        + critic.activations,
        reward_models=weighed.beside_policy,
        reward_models_elsewhere=weighed.elsewhere,
        unknown_reward_models=weighed.unknown,
        is_one_step_off=stage.config.rollout.one_step_off,
    )
