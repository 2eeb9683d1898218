"""What befalls one process of a run, the second where nothing else is said."""

import errno
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer import gathering
from trainer import grpo as updates
from trainer.config import RunConfig
from trainer.model import kernels as flat
from trainer.output.log import EventLog
from trainer.parallel import launch
from trainer.rewards.rule import Sample, Unscorable
from trainer.rewards.rules import RULES
from trainer.rollout import decoder
from trainer.rollout.episodes import EngineSource
from trainer.run import setup as preparation
from trainer.run import state

ROOM = 60  # tokens that a pass of the fake GPU holds


def _replace(
    around: Callable[[Any, torch.Tensor], None], *, rank: int, befalls: int = 1
) -> None:
    through = flat._flat_mlp

    def replaced(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
        around(layer, hidden)
        return through(layer, hidden)

    if rank == befalls:
        flat._flat_mlp = replaced


def _refuse(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def _is_too_large(hidden: torch.Tensor) -> bool:
    return hidden.requires_grad and len(hidden) > ROOM


def memory_runs_out_going_forward(rank: int) -> None:
    """In the second layer, whose weights have come from the other process by then."""
    first: list[Any] = []

    def around(layer: Any, hidden: torch.Tensor) -> None:
        if _is_too_large(hidden):
            first.append(layer)
            if layer is not first[0]:
                _refuse()

    _replace(around, rank=rank)


def memory_runs_out_going_backward(rank: int) -> None:
    def around(layer: Any, hidden: torch.Tensor) -> None:
        if _is_too_large(hidden):
            hidden.register_hook(_refuse)

    _replace(around, rank=rank)


def memory_runs_out_in_the_reference(rank: int) -> None:
    """In the second layer of the pass over the reference, which comes first."""
    layers: list[Any] = []

    def around(layer: Any, hidden: torch.Tensor) -> None:
        if len(hidden) > ROOM and not any(p.requires_grad for p in layer.parameters()):
            layers.append(layer)
            if layer is not layers[0]:
                _refuse()

    _replace(around, rank=rank)


def there_is_no_memory(rank: int) -> None:
    _replace(_refuse, rank=rank)


def it_is_stuck(rank: int) -> None:
    _replace(lambda *_: time.sleep(3_600), rank=rank)


def sampling_ahead_fails(rank: int) -> None:
    complete = EngineSource.complete

    def sample(
        self: EngineSource, prompts: Sequence[Any], step: int, **named: Any
    ) -> Any:
        if step == 3:
            raise ValueError("The sampler fell over.")
        return complete(self, prompts, step, **named)

    if rank == 1:
        EngineSource.complete = sample


def _break(*_: object) -> None:
    raise ArithmeticError("the second layer is broken")


def it_fails_while_the_first_is_stuck(rank: int) -> None:
    """As in a GPU's kernel, where a broken connection is not noticed."""
    _replace(_break, rank=rank)
    _replace(lambda *_: time.sleep(3_600), rank=rank, befalls=0)


def the_first_one_fails(rank: int) -> None:
    _replace(_break, rank=rank, befalls=0)


def memory_runs_out_measuring(rank: int) -> None:
    """In the second layer of a pass that is measured without checkpointing."""
    layers: list[Any] = []

    def around(layer: Any, hidden: torch.Tensor) -> None:
        if len(hidden) > 1_000 and not layer.gradient_checkpointing:
            layers.append(layer)
            if layer is not layers[0]:
                _refuse()

    _replace(around, rank=rank)
    state.memory_of = lambda _device: _Gpu(free=8e9 - 2e9 * rank)  # type: ignore[assignment,return-value]


class _Gpu:
    """Memory that is free; after a pass that fails, two sizes take 1.2 and 1.4 GB."""

    def __init__(self, *, free: float) -> None:
        self._free = free
        self._num_sent = 0

    def free_bytes(self, *, enough: float = math.inf) -> int:
        return int(self._free)

    def peak_bytes(self, work: Callable[[], Any]) -> tuple[int, Any]:
        result = work()
        self._num_sent += 1
        return 10**9 + 2 * 10**8 * (self._num_sent - 2), result


def memory_runs_out_sampling(rank: int) -> None:
    """Four rows fit, of the eight that each process has in a step."""
    draw = decoder.draw_tokens

    def drawn(logits: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return (_refuse if len(logits) > 4 else draw)(logits, *rest, **options)

    if rank == 1:
        decoder.draw_tokens = drawn


def it_has_other_rows(rank: int) -> None:
    read = preparation.read_rows

    def turned(*args: Any, **options: Any) -> Any:
        return read(*args, **options)[::-1]

    if rank == 1:
        preparation.read_rows = turned


def it_has_another_engine(rank: int) -> None:
    read = launch.read_config

    def changed(path: Path) -> RunConfig:
        tree = read(path).model_dump()
        tree["rollout"] |= {"engine": "transformers", "url": None}
        return RunConfig.model_validate(tree)

    if rank == 1:
        launch.read_config = changed


def losses_become_infinite(rank: int) -> None:
    """For a while, and in the second process alone."""
    objective, calls = updates.objective, 0

    def infinite(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        loss, statistics = objective(*args, **options)
        return loss * (torch.inf if 3 <= calls <= 4 else 1.0), statistics

    if rank == 1:
        updates.objective = infinite


def scores_fail_from_step_three(rank: int) -> None:
    """The length rule's, in one process: half of the step's."""
    length, complete, steps = RULES["length"], EngineSource.complete, [0]

    def counted(self: EngineSource, prompts: Any, step: int, **named: Any) -> Any:
        steps.append(step)
        return complete(self, prompts, step, **named)

    def score(sample: Sample, params: Any) -> float:
        if steps[-1] >= 3:
            raise Unscorable("The grader was lost.")
        assert length.score is not None
        return length.score(sample, params)

    if rank == 1:
        EngineSource.complete = counted  # type: ignore[method-assign,assignment]
        RULES["length"] = replace(length, score=score)


def the_disk_is_full_from_step_2(rank: int) -> None:
    """Under the log, which the first process writes."""

    def write(log: EventLog) -> None:
        if log.step >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(log)

    if rank == 0:
        written = EventLog._write
        EventLog._write = write  # type: ignore[method-assign]


def sampling_is_slow(rank: int) -> None:
    """Of the second process: 0.6 s more for each batch, which no load hides."""
    if rank != 1:
        return
    sample = gathering._sample

    def slow(*arguments: Any, **options: Any) -> Any:
        with options["watch"].phase("generate"):
            time.sleep(0.6)
        return sample(*arguments, **options)

    gathering._sample = slow
