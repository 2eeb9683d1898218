"""Micro-batch size and gradient checkpointing: chosen by GPU memory, halved on OOM."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from trainer.config import RunConfig
from trainer.errors import is_out_of_memory
from trainer.model.microbatches import Minibatch
from trainer.model.packing import Batch, MicroBatch, TrainingSample
from trainer.model.policy import Policy
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import ALONE, World
from trainer.sizes.footprint import largest_update
from trainer.sizes.memory import (
    CPU_TOKENS,
    SPARE_BYTES,
    PassMemory,
    PassSizes,
    choose_sizes,
)
from trainer.tokenizers import first_line

Result = TypeVar("Result")
Work = Callable[[Sequence[MicroBatch]], Result]
# Tokens of the two passes that are measured. From the first on, as many logits are held
# at a time as in any larger one (`model.logprobs`).
_MEASURED = (2_048, 4_096)
_LENGTH = 1_024  # of their sequences at most, so that both are of the same length


class GpuMemory:
    """The memory of a GPU, as torch tells of it. The device is that of some tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_bytes(self, *, enough: float = math.inf) -> int:
        """Return what can be taken, that of torch's own blocks included.

        They are not looked through, one by one, where without them there is enough.
        """
        free = torch.cuda.mem_get_info(self._device)[0] - SPARE_BYTES
        return free if free >= enough else free + self._unused_bytes()

    def _unused_bytes(self) -> int:
        """Count the unused bytes of torch's blocks, without those that only graphs may
        use.
        """
        return sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == self._device.index
            and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        )

    def total_bytes(self) -> int:
        return torch.cuda.get_device_properties(self._device).total_memory

    def peak_bytes(self, work: Callable[[], Result]) -> tuple[int, Result]:
        """Return the most that work holds at once, beside what is held before it."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        result = work()
        return torch.cuda.max_memory_allocated(self._device) - before, result


def memory_of(device: torch.device) -> GpuMemory | None:
    """Return the device's memory; None on a CPU, whose memory other programs share."""
    return GpuMemory(device) if device.type == "cuda" else None


class MemoryBudget:
    """Tokens per micro-batch, halved when out of memory.

    The size changes memory and speed, not the result, so a step that ran out of memory
    is repeated with half as many; `on_halved` gets the number and the reason.
    """

    def __init__(
        self,
        tokens: int | Literal["auto"],
        *,
        on_halved: Callable[[int, str], None],
        world: World = ALONE,
        shared: ShardedPolicy | None = None,  # None: no other process has a part in it
    ) -> None:
        self._limit: int | None = None  # what memory was seen to bear
        self._chosen: PassSizes | None = None  # by the memory that was free
        self._chosen_in = 0  # the phase's first step
        self._on_halved = on_halved
        self._world = world
        self._shared = shared
        self.begin_phase(tokens)

    def begin_phase(
        self, tokens: int | Literal["auto"], *, first_step: int = 1
    ) -> None:
        """Take the number that a phase asks for, as far as memory bears it."""
        self._first_step, self._is_settled = first_step, False
        self._take(CPU_TOKENS if tokens == "auto" else tokens)

    def _take(self, tokens: int) -> None:
        self.tokens = tokens if self._limit is None else min(tokens, self._limit)

    def choose(
        self,
        policy: Policy,
        config: RunConfig,
        memory: GpuMemory,
        work: Work[object],
        *,
        later_bytes: int,
        beside_bytes: int = 0,
    ) -> PassSizes | None:
        """Choose the settings that a phase leaves to "auto", by free memory.

        Choices in a checkpoint of the same phase stay. A collective call: all processes
        must make it.

        Args:
            policy: the model that is trained.
            config: of the phase.
            memory: of the policy's device.
            work: the passes of an update over some micro-batches. It keeps nothing.
            later_bytes: what an update will hold from its end on.
            beside_bytes: what will be held beside an update, if there is room.

        Returns:
            What was chosen just now.
        """
        tokens = config.optim.micro_batch_tokens
        checkpointing = config.model.gradient_checkpointing
        if self._is_settled or "auto" not in (tokens, checkpointing):
            return None
        self._is_settled = True
        is_new = self._chosen is None or self._chosen_in != self._first_step
        if is_new:

            def measured(*, on: bool) -> list[PassMemory]:
                policy.set_checkpointing(on=on)
                sizes = self.measure(policy, config, memory, work)
                free = memory.free_bytes() - later_bytes
                free -= min(beside_bytes, free // 2)
                return self._world.gather(replace(sizes, free=free))

            self._chosen = _choose(config, measured, num_processes=self._world.size)
            self._chosen_in = self._first_step
        assert self._chosen is not None
        on = self._chosen.checkpointing if checkpointing == "auto" else checkpointing
        policy.set_checkpointing(on=on)
        self._take(self._chosen.tokens if tokens == "auto" else tokens)
        return self._chosen if is_new else None

    def measure(
        self, policy: Policy, config: RunConfig, memory: GpuMemory, work: Work[object]
    ) -> PassMemory:
        """Return what passes of two sizes take; what is made once is made before."""
        length = min(_LENGTH, config.longest_sequence)
        sizes = [tokens // length * length for tokens in _MEASURED]
        peaks = []
        for tokens in (sizes[0], *sizes):
            minibatch = self._made_up(policy, config, tokens=tokens, length=length)
            peak, (_, reason) = memory.peak_bytes(partial(self._try, minibatch, work))
            if any(self._world.gather(reason)):
                torch.cuda.empty_cache()
                return PassMemory(free=0)
            peaks.append(peak)
        _, few, many = peaks
        bytes_per_token = max(1.0, (many - few) / (sizes[1] - sizes[0]))
        return PassMemory(
            free=0,
            fixed=max(0.0, few - bytes_per_token * sizes[0]),
            each=bytes_per_token,
        )

    def _made_up(
        self, policy: Policy, config: RunConfig, *, tokens: int, length: int
    ) -> Minibatch:
        """Two micro-batches for each process: a second one finds gradients there."""
        chance, vocabulary = random.Random(0), policy.head.weight.shape[0]
        samples = [
            TrainingSample(
                prompt_ids=(group % vocabulary,),
                completion_ids=tuple(
                    chance.randrange(vocabulary) for _ in range(length - 1)
                ),
                sampling_logprobs=(0.0,) * (length - 1),
            )
            for group in range(2 * self._world.size)
            for _ in range(tokens // length)
        ]
        minibatch = Minibatch(
            Batch(tuple(samples), loss=config.loss),
            max_tokens=tokens + 1,  # as many as go together of a group, by both rules
            device=policy.device,
            is_packed=policy.is_packed,
            world=self._world,
        )
        for micro in minibatch.micro_batches:
            micro.reference_logprobs = torch.zeros_like(micro.mask)
        return minibatch

    def cut(self, batch: Batch, policy: Policy) -> Minibatch:
        """Return a batch for a policy's updates, cut into what memory bears."""
        return Minibatch(
            batch,
            max_tokens=self.tokens,
            device=policy.device,
            is_packed=policy.is_packed,
            world=self._world,
        )

    def run(self, minibatch: Minibatch, work: Work[Result]) -> Result:
        """Do work on micro-batches that fit; it must be repeatable.

        If one process runs out of memory, all repeat it. Work may call the model, but
        no other collective.
        """
        if minibatch.max_tokens > self.tokens:
            minibatch.cut(self.tokens)
        while True:
            results, reason = self._try(minibatch, work)
            reasons = [text for text in self._world.gather(reason) if text]
            if not reasons:
                return results[0]
            results.clear()
            torch.cuda.empty_cache()
            # until it makes a difference to this batch, which may be a small one
            num_before = minibatch.num_parts
            while minibatch.num_parts == num_before:
                self.tokens //= 2
                minibatch.cut(self.tokens)
            self._limit = self.tokens
            self._on_halved(self.tokens, reasons[0])

    def _try(
        self, minibatch: Minibatch, work: Work[Result]
    ) -> tuple[list[Result], str | None]:
        """Return the result, or why there is none; the others are not kept waiting for
        it.
        """
        if self._shared is not None:
            self._shared.begin_pass()
        try:
            return [work(minibatch.micro_batches)], None
        except RuntimeError as error:
            if not is_out_of_memory(error) or minibatch.is_single_file:
                raise
            reason = first_line(error)
        # Out of the handler the failed pass's tensors are gone with its frames.
        if self._shared is not None:
            torch.cuda.empty_cache()
            self._shared.catch_up()
            work(minibatch.idle_micro_batches())
        return [], reason

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"limit": self._limit}
        if self._chosen is not None:
            state |= {"chosen": asdict(self._chosen), "chosen_in": self._chosen_in}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what memory was seen to bear, for `begin_phase`."""
        self._limit = state["limit"]
        self._take(self.tokens)
        if "chosen" in state:
            self._chosen = PassSizes(**state["chosen"])
            self._chosen_in = state["chosen_in"]


def _choose(
    config: RunConfig,
    measure: Callable[..., list[PassMemory]],
    *,
    num_processes: int,
) -> PassSizes:
    """Choose as `choose_sizes` does, with gradient checkpointing measured where it
    matters: `measure` is called with `on`.
    """
    settings: dict[str, Any] = {
        "longest": config.longest_sequence,
        "largest": largest_update(config, num_processes=num_processes),
        "tokens": config.optim.micro_batch_tokens,
        "checkpointing": config.model.gradient_checkpointing,
    }
    plain = [] if config.model.gradient_checkpointing is True else measure(on=False)
    sizes = choose_sizes(plain, None, **settings)
    if sizes is None:
        sizes = choose_sizes(plain, measure(on=True), **settings)
    assert sizes is not None
    return sizes
