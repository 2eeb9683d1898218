"""Faults injected into a trainer process."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trainer.grpo
from tests.faults.small_disk import fill
from trainer import disk
from trainer.algorithm.loss import objective
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.output import checkpoint
from trainer.run import loop
from trainer.tensorfile import TensorWriter

ROOM = 100  # tokens that a pass bears where memory is scarce


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def memory_is_scarce() -> None:
    """A pass with more than ROOM tokens finds none left."""
    forward = Policy.hidden

    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        if micro.input_ids.numel() > ROOM:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return forward(self, micro)

    Policy.hidden = hidden  # type: ignore[method-assign]  # on purpose


def losses_are_no_number(*numbers: int) -> None:
    """Of the updates of these numbers, counted from 1."""
    count = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        loss, statistics = objective(*args, **kwargs)
        return loss * (torch.nan if count in numbers else 1.0), statistics

    trainer.grpo.objective = broken  # type: ignore[assignment]  # on purpose


def the_disk_fills_up_in_a_save(step: int, disk: str) -> None:
    """When half of the optimizer is written."""
    _at_save(
        step, lambda: _in_the_midst_of_the_optimizer(lambda: fill(Path(disk), leave=0))
    )


def it_dies_in_a_save(step: int, point: str) -> None:
    """SIGKILL when the checkpoint of a step has got as far as a point."""
    _at_save(step, POINTS[point])


def _at_save(step: int, prepare: Callable[[], None]) -> None:
    write = loop.write_checkpoint

    def write_checkpoint(*args: Any, step: int) -> None:
        if step == now:
            prepare()
        write(*args, step=step)

    now = step
    loop.write_checkpoint = write_checkpoint


def _before(
    module: Any, name: str, act: Callable[..., object], *, call: int = 1
) -> None:
    """Act before the n-th call of a function."""
    through, count = getattr(module, name), 0

    def replaced(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            act(*args, **kwargs)
        return through(*args, **kwargs)

    setattr(module, name, replaced)


def _after(module: Any, name: str, act: Callable[..., object]) -> None:
    through = getattr(module, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        found = through(*args, **kwargs)
        act(*args, **kwargs)
        return found

    setattr(module, name, replaced)


def _in_the_midst_of_the_optimizer(act: Callable[[], object]) -> None:
    def flush_and_act(self: TensorWriter, *_: object) -> None:
        self._file.flush()
        act()

    _before(TensorWriter, "add", flush_and_act, call=8)


def _before_the_random_state() -> None:
    def look(self: TensorWriter, name: str, tensor: torch.Tensor) -> None:
        if name == "torch_rng":
            self._file.flush()
            die()
        add(self, name, tensor)

    add = TensorWriter.add
    TensorWriter.add = look  # type: ignore[method-assign]  # on purpose


def _with_half_a_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
    die()


def _with_half_a_manifest() -> None:
    def look(path: Path, content: bytes) -> None:
        write(path, content)
        if path.name == "manifest.json":
            _with_half_a_file(path)

    write = checkpoint._write
    checkpoint._write = look


def _in_the_midst_of_pruning() -> None:
    """After one file of the pruned checkpoint is deleted."""

    def remove_one(path: Path) -> None:
        if path.name.startswith("step-"):
            next(found for found in path.rglob("*.safetensors")).unlink()
            die()
        remove(path)

    remove = disk._remove
    disk._remove = remove_one


# In the order of a save: optimizer, weights, what is small, manifest, name, pruning.
POINTS: dict[str, Callable[[], None]] = {
    "folder made": lambda: _before(checkpoint, "_write_optimizer", die),
    "optimizer half": lambda: _in_the_midst_of_the_optimizer(die),
    "before random state": _before_the_random_state,
    "optimizer whole": lambda: _after(checkpoint, "_write_optimizer", die),
    "weights half": lambda: _after(
        Policy,
        "save",
        lambda self, folder: _with_half_a_file(folder / "model.safetensors"),
    ),
    "weights whole": lambda: _after(Policy, "save", die),
    "position missing": lambda: _before(checkpoint, "_write", die, call=2),
    "manifest missing": lambda: _before(checkpoint, "_write", die, call=3),
    "manifest half": _with_half_a_manifest,
    "before fsync": lambda: _before(checkpoint, "_sync", die),
    "half of the fsyncs": lambda: _before(checkpoint, "_sync", die, call=4),
    "before rename": lambda: _before(Path, "rename", die),
    "after rename": lambda: _after(Path, "rename", die),
    "before pruning": lambda: _before(loop, "prune_checkpoints", die),
    "half of the pruning": _in_the_midst_of_pruning,
    "after pruning": lambda: _after(loop, "prune_checkpoints", die),
}
