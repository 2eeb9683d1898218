"""What the weights of a run's reward models take, from their files' headers alone.

The web half may ask, so no torch is imported here. Left out: what their forward passes
need, which `batch_tokens` bounds and which is free again after each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.rewards.rules.reward_model import RewardModelParams

# safetensors' own limit is 100 MB; the largest published headers have some hundred KB.
_LARGEST_HEADER = 10_000_000
_LARGEST_INDEX = 10_000_000
_MOST_FILES = 1_000
_FLOAT32 = 4
_FLOATS = {"F64", "F32", "F16", "BF16"}
_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """Bytes, by where they lie, of each process of the run."""

    beside_policy: int = 0
    elsewhere: int = 0  # on the CPU, where the policy is on a GPU, or the other way
    unknown: tuple[str, ...] = ()  # paths of models that are not to be seen here


def weigh_reward_models(config: RunConfig, *, on_gpu: bool) -> RewardWeights:
    """All of the run's: a model of one phase stays in memory for the others.

    Args:
        config: of the run.
        on_gpu: what "auto" means for a device.
    """
    policy_on_gpu = _is_on_gpu(config.model.device, on_gpu=on_gpu)
    beside = elsewhere = 0
    unknown: dict[str, None] = {}
    for params in _models(config):
        is_fast = _is_on_gpu(params.device, on_gpu=on_gpu)
        try:
            num_bytes = weights_in(
                Path(params.path), bytes_each=2 if is_fast else _FLOAT32
            )
        except ValueError:
            unknown[params.path] = None
            continue
        if is_fast == policy_on_gpu:
            beside += num_bytes
        else:
            elsewhere += num_bytes
    return RewardWeights(
        beside_policy=beside, elsewhere=elsewhere, unknown=tuple(unknown)
    )


def _is_on_gpu(device: str, *, on_gpu: bool) -> bool:
    return device == "cuda" or (device == "auto" and on_gpu)


def _models(config: RunConfig) -> Iterator[RewardModelParams]:
    """Each that is loaded: two rules that read one model alike share it."""
    seen = set()
    for stage in config.stages:
        for recipe in stage.config.reward.recipes:
            for rule in recipe.rules:
                params = rule.checked_params()
                if not isinstance(params, RewardModelParams):
                    continue
                loaded = params.model_dump_json(exclude={"low", "high"})
                if loaded not in seen:
                    seen.add(loaded)
                    yield params


def weights_in(folder: Path, *, bytes_each: int) -> int:
    """Bytes of a folder's weights in memory, floats at `bytes_each`.

    Raises:
        ValueError: the folder has no safetensors that can be read.
    """
    return sum(
        _bytes_of(tensor, bytes_each)
        for path in _files(folder)
        for name, tensor in _read_header(path).items()
        if name != "__metadata__"
    )


def _bytes_of(tensor: Any, bytes_each: int) -> int:
    try:
        kind, shape = tensor["dtype"], tensor["shape"]
        count = math.prod(int(size) for size in shape)
        return count * (bytes_each if kind in _FLOATS else _BYTES.get(kind, 1))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise ValueError("No header of safetensors.") from error


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    if index.stat().st_size > _LARGEST_INDEX:
        raise ValueError(f"{index} is too large.")
    try:
        places = json.loads(index.read_bytes())["weight_map"].values()
        names = {Path(str(name)).name for name in places}
    except (
        OSError,
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ValueError(f"{index} names no files.") from error
    if len(names) > _MOST_FILES:
        raise ValueError(f"{index} names {len(names):,} files.")
    return [folder / name for name in sorted(names)]


def _read_header(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"There is no {path}.")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LARGEST_HEADER:
                raise ValueError(f"The header of {path} is too large.")
            tree = json.loads(file.read(length))
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read.") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} has no header of safetensors.")
    return tree
