"""Memory estimate of a run from its configuration and its model's sizes.

The dashboard uses it without a model, so it imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from trainer.config import RunConfig
from trainer.config.run import PhaseConfig
from trainer.sizes.footprint import Footprint, largest_update
from trainer.sizes.model_sizes import (
    Dimensions,
    RewardWeights,
    dimensions_of,
    read_dimensions,
    takes_gpu,
    weigh_reward_models,
)

# A run takes so much of what is free: an allocator loses some between its blocks.
UPDATE_SHARE, SAMPLING_SHARE = 0.9, 0.8
# vLLM beside an update: its cache leaves it as much of what is free, and if it holds a
# larger share of the GPU than this with its weights, it sleeps meanwhile.
CACHE_SHARE, SLEEP_SHARE = 0.5, 0.25
CPU_CACHE_BYTES = 4 * 2**30
SPARE_BYTES = 2**30  # of what is free: for CUDA's libraries and other programs
# So many tokens at once keep a GPU busy; beyond the most, more make nothing faster.
ENOUGH_TOKENS, MOST_TOKENS, TOKEN_STEP = 16_384, 131_072, 1_024
CPU_TOKENS = 8_192


@dataclass(frozen=True, kw_only=True)
class PassMemory:
    """Bytes that a pass over a micro-batch takes: `fixed` + tokens · `each`."""

    free: float  # before it, without what is going to be held beside it
    fixed: float = 0.0  # gradients, and the logits held at a time
    each: float = math.inf  # inf: too much for what was tried

    @property
    def tokens(self) -> int:
        """The number that fits, as a multiple of 1,024."""
        fitting = (UPDATE_SHARE * self.free - self.fixed) / self.each
        return min(max(0, int(fitting)) // TOKEN_STEP * TOKEN_STEP, MOST_TOKENS)


@dataclass(frozen=True, kw_only=True)
class PassSizes:
    """The tokens that go through the model at once, and how."""

    tokens: int  # of a micro-batch
    checkpointing: bool


def choose_sizes(
    plain: Sequence[PassMemory],
    recomputing: Sequence[PassMemory] | None,
    *,
    longest: int,
    largest: int,
    tokens: int | Literal["auto"] = "auto",
    checkpointing: bool | Literal["auto"] = "auto",
) -> PassSizes | None:
    """Return what of tokens and checkpointing is "auto", by the memory that passes
    take.

    Gradient checkpointing stays off where enough tokens fit without it: those that are
    asked for, or 16,384, but no more than an update has. Of several processes the one
    with the least memory decides.

    Args:
        plain: of each process without checkpointing.
        recomputing: with it; None: not known yet.
        longest: tokens of the longest sequence, which is never cut.
        largest: tokens of the largest update.
        tokens: as configured.
        checkpointing: as configured.

    Returns:
        None: `recomputing` has to be known.
    """
    enough = ENOUGH_TOKENS if tokens == "auto" else tokens
    if checkpointing is not True:
        fitting = min(row.tokens for row in plain)
        if checkpointing is False or fitting >= max(longest, min(enough, largest)):
            num_tokens = max(longest, fitting) if tokens == "auto" else tokens
            return PassSizes(tokens=num_tokens, checkpointing=False)
    if tokens != "auto":
        return PassSizes(tokens=tokens, checkpointing=True)
    if recomputing is None:
        return None
    fitting = min(row.tokens for row in recomputing)
    return PassSizes(tokens=max(longest, fitting), checkpointing=True)


def fitting_rows(*, free: float, row_bytes: float) -> int:
    """Return completions that can be sampled together to their full length, one at
    least.
    """
    return max(1, int(SAMPLING_SHARE * free / row_bytes))


@dataclass(frozen=True, kw_only=True)
class EngineSizes:
    """The bytes of vLLM's keys and values, and whether it sleeps during updates."""

    cache_bytes: int
    sleeps: bool


def engine_sizes(
    config: RunConfig,
    *,
    wanted_bytes: int,
    least_bytes: int,
    weight_bytes: int,
    free: float | None,
    gpu_bytes: float | None,
    on_gpu: bool,
) -> EngineSizes:
    """Return what of `rollout.cache_gib` and `rollout.sleep` is "auto", by the GPU's
    memory.

    Args:
        config: of the run.
        wanted_bytes: keys and values of all that is sampled at a time.
        least_bytes: those of one completion, without which vLLM does not start.
        weight_bytes: vLLM's copy of the weights.
        free: before that copy, without all that training holds at any time.
        gpu_bytes: memory of the GPU; None, as `free`: not known, so sizes are the
            smallest.
        on_gpu: whether there is one.
    """
    rollout = config.rollout
    if rollout.cache_gib != "auto":
        cache = round(rollout.cache_gib * 2**30)
    elif not on_gpu:
        cache = min(wanted_bytes, CPU_CACHE_BYTES)
    elif free is None:
        cache = least_bytes
    else:
        fitting = int(CACHE_SHARE * (free - weight_bytes))
        cache = max(least_bytes, min(wanted_bytes, fitting))
    sleeps = rollout.sleep
    if sleeps == "auto":
        is_large = gpu_bytes is None or weight_bytes + cache > SLEEP_SHARE * gpu_bytes
        # one step off, it samples during updates
        sleeps = is_large and not any(
            phase.config.rollout.one_step_off for phase in config.phase_configs
        )
    return EngineSizes(cache_bytes=cache, sleeps=on_gpu and sleeps)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes per part; per process, if there are several.

    Sampling, measuring the KL and updating take turns, so the total is the part in
    memory at all times plus the largest of the three; with one_step_off, sampling runs
    alongside the others. Left out: the program itself, CUDA's context (about half a GB,
    and another for reward models in their process), and allocator fragmentation.
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
    measuring: int = 0  # a start or teacher that is parked elsewhere between its uses
    parked: int = 0  # in main memory: that model, or weights of a vLLM that sleeps
    reward_models: int = 0  # weights of those beside the policy
    reward_models_elsewhere: int = 0  # on the other device, so no part of the total
    unknown_reward_models: tuple[str, ...] = ()  # paths; not counted
    is_one_step_off: bool = False  # it samples and updates at the same time
    sizes: PassSizes | None = None  # chosen for the GPU; None: all are configured
    num_shards: int = 1  # processes that share what is trained and the reference
    is_least: bool = False  # the GPU is not known, so its sizes are the smallest
    parks_teacher: bool = False  # for the GPU has no room for it

    @property
    def always(self) -> int:
        training = self.weights + self.master_weights + self.optimizer + self.reference
        return training + self.engine + self.snapshot + self.reward_models

    @property
    def while_sampling(self) -> int:
        return self.kv_cache + self.sampling + self.sleeping_engine

    @property
    def while_updating(self) -> int:
        return self.gradients + self.activations + self.logits

    @property
    def total(self) -> int:
        training = max(self.measuring, self.while_updating)
        if self.is_one_step_off:
            return self.always + self.while_sampling + training
        return self.always + max(self.while_sampling, training)


def estimate(
    config: RunConfig,
    model_config: Mapping[str, Any] | None = None,
    *,
    on_gpu: bool = False,
    gpu_bytes: int | None = None,
    largest_set: int = 0,
    teachers: Mapping[str, Mapping[str, Any]] | None = None,
) -> MemoryEstimate:
    """Peak memory of a run if every prompt and completion has its full length.

    For a run in phases, that of the largest phase. Settings that depend on a GPU's free
    memory are chosen for `gpu_bytes`; if that is unknown or too little, the smallest
    sizes are used. Of several nodes each has the whole model in parts if it fits so.

    Args:
        config: of the run.
        model_config: the model's config.json; None: read from the folder model.path.
        on_gpu: what "auto" means for device and number format.
        gpu_bytes: memory of the GPU.
        largest_set: rows of the largest of `evaluation.sets`, whose files need not be
            here.
        teachers: config.json of models that `reference.model` names; of others it is
            read from the folder.

    Raises:
        ValueError: the model's sizes are not known, or a teacher's.
    """
    if model_config is None:
        sizes = read_dimensions(config.model.path)
    else:
        sizes = dimensions_of(model_config)
    weighed = weigh_reward_models(config, on_gpu=on_gpu)

    def teacher_of(phase: PhaseConfig) -> Dimensions | None:
        source = phase.config.reference.model
        if source is None or phase.reference_kind != "frozen":
            return None
        if teachers and source in teachers:
            return dimensions_of(teachers[source])
        return read_dimensions(source)

    def shared_by(num_shards: int, gpu_bytes: int | None) -> MemoryEstimate:
        return max(
            (
                _with_teacher(
                    phase,
                    sizes,
                    weighed,
                    teacher_of(phase),
                    on_gpu=on_gpu,
                    gpu_bytes=gpu_bytes,
                    has_snapshot=config.has_snapshot,
                    largest_set=largest_set,
                    num_shards=num_shards,
                )
                for phase in config.phase_configs
            ),
            key=lambda memory: memory.total,
        )

    distributed = config.distributed
    if 1 < distributed.num_processes < distributed.num_ranks:
        least = shared_by(distributed.num_processes, None)
        room = (gpu_bytes or 0) - SPARE_BYTES - least.always
        fits = least.total - least.always <= UPDATE_SHARE * room
        if fits or not takes_gpu(config.model.device, on_gpu=on_gpu):
            return shared_by(distributed.num_processes, gpu_bytes)
    return shared_by(distributed.num_ranks, gpu_bytes)


def _with_teacher(
    phase: PhaseConfig,
    sizes: Dimensions,
    weighed: RewardWeights,
    teacher: Dimensions | None,
    *,
    gpu_bytes: int | None,
    **others: Any,
) -> MemoryEstimate:
    """Estimate a phase whose teacher waits in main memory if a GPU has no room for it.

    One that is in parts, or that each update reads again, stays on the GPU.
    """
    estimated = partial(
        _estimate_phase,
        *(phase, sizes, weighed),
        gpu_bytes=gpu_bytes,
        teacher=teacher,
        **others,
    )
    beside, config = estimated(), phase.config
    stays = config.distributed.num_ranks > 1 or config.loss.kl_estimator == "full"
    if teacher is None or gpu_bytes is None or stays:
        return beside
    is_on_gpu = takes_gpu(config.model.device, on_gpu=others["on_gpu"])
    if not is_on_gpu or beside.total + SPARE_BYTES <= gpu_bytes:
        return beside
    return replace(estimated(parks_teacher=True), parks_teacher=True)


def _estimate_phase(
    phase: PhaseConfig,
    sizes: Dimensions,
    weighed: RewardWeights,
    *,
    on_gpu: bool,
    gpu_bytes: int | None,
    has_snapshot: bool,
    largest_set: int,
    num_shards: int,
    teacher: Dimensions | None = None,
    parks_teacher: bool = False,
) -> MemoryEstimate:
    config = phase.config

    def footprint(passes: PassSizes, sizes: Dimensions = sizes) -> Footprint:
        return Footprint(
            sizes,
            phase,
            on_gpu=on_gpu,
            tokens=passes.tokens,
            recomputes=passes.checkpointing,
            num_shards=num_shards,
            largest_set=largest_set,
            teacher=teacher,
            parks_teacher=parks_teacher,
        )

    longest = config.longest_sequence
    is_on_gpu = takes_gpu(config.model.device, on_gpu=on_gpu)
    engine, sleeps = 0, False  # vLLM's bytes in the trainer's process
    if config.rollout.engine == "vllm":
        model = footprint(PassSizes(tokens=longest, checkpointing=True))
        static = SPARE_BYTES + model.training + weighed.beside_policy
        chosen_engine = engine_sizes(
            config,
            wanted_bytes=model.engine_cache(model.rows_sampled),
            least_bytes=model.engine_cache(1),
            weight_bytes=model.engine_weights,
            free=None if gpu_bytes is None else gpu_bytes - static,
            gpu_bytes=gpu_bytes,
            on_gpu=is_on_gpu,
        )
        engine = model.engine_weights + chosen_engine.cache_bytes
        sleeps = chosen_engine.sleeps

    def measure(passes: PassSizes, *, rows: int | None = None) -> MemoryEstimate:
        model = footprint(passes)
        # A value head is one row, so of the embeddings the critic has the input's.
        critic = footprint(passes, replace(sizes, is_tied=True))
        rows = model.rows_sampled if rows is None else rows
        return MemoryEstimate(
            first_step=phase.first_step,
            weights=model.weights,
            master_weights=model.master_weights,
            optimizer=model.optimizer,
            reference=model.reference,
            engine=0 if sleeps else engine,
            sleeping_engine=engine if sleeps else 0,
            snapshot=model.snapshot if has_snapshot else 0,
            gradients=model.gradients,
            activations=model.activations,
            logits=model.logits,
            kv_cache=model.kv_cache(rows),
            sampling=model.sampling(rows),
            measuring=model.measuring,
            # merged weights are all sent again
            parked=model.measuring
            + (model.engine_weights if sleeps and config.model.lora_rank else 0),
            ppo_critic=critic.weights
            + critic.master_weights
            + critic.optimizer
            + critic.gradients
            + critic.activations,
            reward_models=weighed.beside_policy,
            reward_models_elsewhere=weighed.elsewhere,
            unknown_reward_models=weighed.unknown,
            is_one_step_off=config.rollout.one_step_off,
            num_shards=num_shards,
        )

    tokens = config.optim.micro_batch_tokens
    checkpointing = config.model.gradient_checkpointing
    if not is_on_gpu:
        return measure(
            PassSizes(
                tokens=CPU_TOKENS if tokens == "auto" else tokens,
                checkpointing=checkpointing is True,
            )
        )
    is_chosen = "auto" in (tokens, checkpointing)
    least = PassSizes(
        tokens=longest if tokens == "auto" else tokens,
        checkpointing=checkpointing is not False,
    )
    model = footprint(least)
    if gpu_bytes is None:
        if not is_chosen:
            return measure(least)
        rows = 1 if model.is_sampled else model.rows_sampled
        return replace(measure(least, rows=rows), sizes=least, is_least=True)
    memory = measure(least)
    free = gpu_bytes - SPARE_BYTES - memory.always
    beside = config.rollout.one_step_off
    rows = model.rows_sampled
    if model.is_sampled:
        rows = min(
            rows,
            fitting_rows(free=free / 2 if beside else free, row_bytes=model.row_bytes),
        )
    memory = measure(least, rows=rows)
    if not is_chosen:
        return memory
    # From what micro-batches of two sizes take; a run's own batch may be smaller.
    few = max(longest, CPU_TOKENS)
    free -= memory.while_sampling if beside else 0
    passes = []
    for on in (False, True):
        small, large = (
            measure(PassSizes(tokens=num_tokens, checkpointing=on)).while_updating
            for num_tokens in (few, 2 * few)
        )
        bytes_per_token = max(1.0, (large - small) / few)
        passes.append(
            PassMemory(
                free=free, fixed=small - bytes_per_token * few, each=bytes_per_token
            )
        )
    chosen = choose_sizes(
        passes[:1],
        passes[1:],
        longest=longest,
        largest=largest_update(config, num_processes=config.distributed.num_ranks),
        tokens=tokens,
        checkpointing=checkpointing,
    )
    assert chosen is not None
    return replace(measure(chosen, rows=rows), sizes=chosen)
