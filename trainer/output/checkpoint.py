"""Checkpoints: folders that are complete and verified, or do not exist."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from trainer.config import ModelConfig
from trainer.curriculum import Beliefs
from trainer.disk import (
    DiskFull,
    bytes_needed,
    check_disk_space,
    folder_bytes,
    is_disk_full,
    list_checkpoints,
    raise_disk_full,
)
from trainer.gathering import SampledBatch, save_batch
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import FrozenReference, Reference
from trainer.parallel.world import ALONE, World
from trainer.tensorfile import TensorWriter, read_tensors

_MANIFEST = "manifest.json"
_STATE = "state.json"
_OPTIMIZER = "optimizer.safetensors"
_RNG = "torch_rng"  # in the optimizer's file
_CONTROLLERS = "controllers.json"
_BELIEFS = "curriculum.npz"
MODEL = "model"
_ADAPTERS = "adapters"
_REFERENCE = "reference"
_START = "start"
_AHEAD = "ahead"


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint as the event log names it."""

    name: str
    sha256: str  # of its manifest
    num_bytes: int


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    attempt: int,
    policy: Policy,
    optimizer: Optimizer,
    reference: Reference | None = None,
    start: FrozenReference | None = None,
    ahead: SampledBatch | None = None,
    controllers: Mapping[str, Any],
    beliefs: Beliefs | None = None,
    prompts_digest: str = "",
    before: Path | None = None,
    world: World = ALONE,
) -> SavedCheckpoint:
    """Save the state of a run as folder/step-…-attempt-….

    model/ is a complete model, with adapters merged. Next to it are the adapters, an
    updated reference, the weights that a phase samples from and started with, the batch
    sampled ahead for the next step, the optimizer, the adaptive controllers (as JSON),
    what a curriculum believes of the prompts, and the position.

    Files are written into a hidden folder, synced, listed with their SHA-256 in a
    manifest, and only then renamed, so a checkpoint is never incomplete.

    With several processes the first one writes all shards of optimizer and reference,
    tensor by tensor, in the format of a single process: any number of processes can
    resume.

    Args:
        prompts_digest: of the prompts that `beliefs` are about.
        before: the previous checkpoint, whose size estimates the space needed.

    Raises:
        DiskFull: the disk is full, or would be; nothing is left behind.
    """
    name = f"step-{step:06d}-attempt-{attempt}"
    unfinished = folder / f".{name}.unfinished"
    # Where it is not known: no one's model is kept in more than four bytes a weight.
    guess = 4 * policy.num_parameters + sum(
        part.numel() * part.element_size() for _, part in optimizer.parts()
    )
    needs = bytes_needed(folder_bytes(before) if before else guess)
    writing = partial(_writing, unfinished, needs)
    world.from_main(
        lambda: check_disk_space(
            folder, needs, purpose=f"the checkpoint of step {step:,}"
        )
    )
    lack: DiskFull | None = None
    if not isinstance(reference, FrozenReference) or not reference.has_moved:
        reference = None
    state = optimizer.tensors()
    weights = iter(()) if reference is None else reference.tensors()
    try:
        if world.is_main:
            with writing():
                _remove(unfinished)
                (unfinished / MODEL).mkdir(parents=True)
                _write_optimizer(unfinished / _OPTIMIZER, optimizer, state)
                if reference is not None:
                    reference.save(unfinished / _REFERENCE, weights)
    except DiskFull as error:
        lack = error  # for when all processes receive of it
    finally:
        for _ in chain(state, weights):
            pass  # which brings this process's part, be the others written or not
    position = {"step": step, "attempt": attempt}

    def finish() -> SavedCheckpoint:
        if lack is not None:
            raise lack
        with writing():
            return write_rest()

    def write_rest() -> SavedCheckpoint:
        # as it was last gathered: this process does it alone
        policy.whole.save(unfinished / MODEL)
        if policy.has_adapters:
            policy.whole.save_adapters(unfinished / _ADAPTERS)
        if start is not None:
            start.save(unfinished / _START)
        if ahead is not None:
            save_batch(unfinished / _AHEAD, ahead)
        if beliefs is not None:
            beliefs.save(unfinished / _BELIEFS, digest=prompts_digest)
        (unfinished / _CONTROLLERS).write_bytes(json.dumps(controllers).encode())
        (unfinished / _STATE).write_bytes(json.dumps(position).encode())
        return _seal(unfinished, folder / name)

    return world.from_main(finish)


@contextmanager
def _writing(unfinished: Path, needs: int) -> Iterator[None]:
    """Remove what was written so far where the disk is full."""
    folder = unfinished.parent
    with raise_disk_full(folder, needs, purpose="the checkpoint being saved"):
        try:
            yield
        except Exception as error:
            if is_disk_full(error):
                _remove(unfinished)
            raise


def _write_optimizer(
    path: Path, optimizer: Optimizer, tensors: Iterator[tuple[str, torch.Tensor]]
) -> None:
    # No other random state exists: all draws follow from seed and step.
    rng = torch.get_rng_state()
    shapes = [(name, part.dtype, part.shape) for name, part in optimizer.parts()]
    with TensorWriter(path, [*shapes, (_RNG, rng.dtype, rng.shape)]) as file:
        for name, tensor in tensors:
            file.add(name, tensor)
        file.add(_RNG, rng)


def _seal(unfinished: Path, target: Path) -> SavedCheckpoint:
    """List what was written, and give it its name."""
    files = {path: _digest(path) for path in _files(unfinished)}
    listing = {
        str(path.relative_to(unfinished)): {
            "sha256": digest,
            "bytes": path.stat().st_size,
        }
        for path, digest in files.items()
    }
    manifest = json.dumps({"files": listing}, indent=2, sort_keys=True).encode()
    (unfinished / _MANIFEST).write_bytes(manifest)
    for path in (*unfinished.rglob("*"), unfinished):
        _sync(path)
    _remove(target)
    unfinished.rename(target)
    _sync(target.parent)
    return SavedCheckpoint(
        name=target.name,
        sha256=hashlib.sha256(manifest).hexdigest(),
        num_bytes=sum(path.stat().st_size for path in _files(target)),
    )


def verify_checkpoint(path: Path) -> None:
    """Compare a checkpoint with its manifest; ValueError says what is wrong."""
    try:
        files = json.loads((path / _MANIFEST).read_bytes())["files"]
        digests = {path / name: entry["sha256"] for name, entry in files.items()}
    except OSError as error:
        raise ValueError(f"{path} is not a checkpoint: {error}") from None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise ValueError(
            f"{path / _MANIFEST} cannot be read. Resume from another checkpoint."
        ) from None
    for file, expected in digests.items():
        try:
            digest = _digest(file) if file.is_file() else None
        except OSError as error:
            raise ValueError(
                f"{file} cannot be read: {error.strerror}. Resume from another "
                "checkpoint."
            ) from None
        if digest is None:
            raise ValueError(f"{file} is missing. Resume from another checkpoint.")
        if digest != expected:
            raise ValueError(
                f"{file} is damaged: its SHA-256 is not the manifest's. Resume from "
                "another checkpoint."
            )


def newest_checkpoint(
    folder: Path, *, on_refused: Callable[[str], None] = lambda _reason: None
) -> Path | None:
    """Return the furthest checkpoint of a folder that verifies."""
    for path in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(path)
        except ValueError as error:
            on_refused(str(error))
            continue
        return path
    return None


def saved_step(path: Path) -> int:
    """Return the last step that a checkpoint holds."""
    return int(json.loads((path / _STATE).read_bytes())["step"])


def restore_policy(config: ModelConfig, path: Path | None) -> Policy:
    """Return the policy as a checkpoint left it; without one, as its configuration
    says.

    Adapters go on over the model that they were made for, not over the merged one.
    """
    if path is None:
        return load_policy(config)
    if config.lora_rank == 0:
        return load_policy(config, path=str(path / MODEL))
    if not (path / _ADAPTERS).is_dir():
        raise ValueError(
            f"{path} contains no adapters, but model.lora_rank is {config.lora_rank}. "
            "Resume with the configuration of the checkpoint."
        )
    return load_policy(config, adapters=path / _ADAPTERS)


def saved_reference(path: Path) -> Path | None:
    """Return the folder of a checkpoint's reference; None where it had not moved."""
    folder = path / _REFERENCE
    return folder if folder.is_dir() else None


def saved_start(path: Path) -> Path:
    """Return the folder of the weights that a checkpoint's phase began with."""
    return path / _START


def saved_ahead(path: Path) -> Path | None:
    """Return the folder of what was sampled ahead; None where nothing was."""
    folder = path / _AHEAD
    return folder if folder.is_dir() else None


def saved_controllers(path: Path) -> dict[str, Any]:
    """Return what adapts itself during the run, as `save_checkpoint` was given it."""
    controllers: dict[str, Any] = json.loads((path / _CONTROLLERS).read_bytes())
    return controllers


def saved_beliefs(path: Path, *, prompts_digest: str) -> Beliefs | None:
    """Return what a curriculum believed; None where it was off or about others."""
    return Beliefs.load(path / _BELIEFS, digest=prompts_digest)


def restore_optimizer(path: Path, optimizer: Optimizer) -> None:
    """Load a checkpoint's optimizer and torch's random state."""

    def state() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in read_tensors(path / _OPTIMIZER):
            if name == _RNG:
                torch.set_rng_state(tensor)
            else:
                yield name, tensor

    optimizer.load_state_dict(state())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
