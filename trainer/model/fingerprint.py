"""Telling in a moment whether two folders hold the same model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig

from trainer.hub import check_source, weight_files
from trainer.tokenizers import first_line

# Rows read of each weight. A training step moves nearly every number of it.
_NUM_ROWS = 8
# These say how a model was saved, not what it computes.
_IGNORED = {
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


def model_fingerprint(source: str, *, revision: str | None = None) -> str:
    """SHA-256 over a saved model's settings, its weights' shapes and rows of each.

    The rows are read from the files, without loading the model, and rounded to
    bfloat16: the same model saved in another number format or in other pieces keeps
    its fingerprint, and one trained further does not.

    Raises:
        ValueError: the folder or hub id holds no model in safetensors.
    """
    check_source(source, revision=revision)
    digest = hashlib.sha256(_settings(source, revision))
    for name, shape, rows in sorted(_rows(source, revision), key=lambda row: row[0]):
        digest.update(json.dumps([name, shape]).encode())
        digest.update(rows.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def num_parameters(source: str, *, revision: str | None = None) -> int:
    """Numbers in a saved model's weights; raises as `model_fingerprint` does."""
    return sum(math.prod(shape) for _, shape, _ in _rows(source, revision))


def _settings(source: str, revision: str | None) -> bytes:
    try:
        config: Any = AutoConfig.from_pretrained(
            source, revision=revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"The settings of the model {source} cannot be read: {first_line(error)}"
        ) from error
    settings = {k: v for k, v in config.to_dict().items() if k not in _IGNORED}
    return json.dumps(settings, sort_keys=True, default=str).encode()


def _rows(
    source: str, revision: str | None
) -> Iterator[tuple[str, list[int], torch.Tensor]]:
    for path in _weight_files(source, revision):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                tensor = file.get_slice(name)
                shape = tensor.get_shape()
                if not shape:
                    yield name, shape, file.get_tensor(name).reshape(1)
                    continue
                count = min(_NUM_ROWS, shape[0])
                # evenly from the first to the last, so that an end is never left out
                places = [k * (shape[0] - 1) // max(count - 1, 1) for k in range(count)]
                if len(shape) == 1:
                    yield name, shape, tensor[:]
                else:
                    yield name, shape, torch.cat([tensor[k : k + 1] for k in places])


def _weight_files(source: str, revision: str | None) -> list[Path]:
    files = weight_files(source, revision)
    missing = [name for name, file in files.items() if file is None]
    if missing:
        raise ValueError(
            f"The model {source} has no {missing[0]}. Save its weights as safetensors."
        )
    return [file for file in files.values() if file is not None]
