"""Safetensors files, written and read one tensor at a time.

Optimizer states take 12 bytes per weight, too much memory if every process of a machine
loads or gathers all of them at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import torch
from safetensors import safe_open

from trainer.host import tick

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorWriter:
    """Writes a file whose tensors' names and shapes are known before their values.

    Byte for byte what `safetensors.torch.save_file` writes of all of them.
    """

    def __init__(
        self, path: Path, shapes: Iterable[tuple[str, torch.dtype, torch.Size]]
    ) -> None:
        # large numbers first, so that each lies where its format may
        entries = sorted(shapes, key=lambda item: (-item[1].itemsize, item[0]))
        header, self._begins, end = {}, {}, 0
        for name, dtype, shape in entries:
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            self._begins[name] = begin
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._values = 8 + len(text)  # where they begin
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._missing = set(header)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        tick()
        self._missing.remove(name)
        self._file.seek(self._values + self._begins[name])
        numbers = tensor.detach().contiguous().cpu().flatten()
        self._file.write(numbers.view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._file.close()
        assert error is not None or not self._missing, self._missing


def read_shapes(path: Path) -> dict[str, torch.Size]:
    """Read the shapes of all tensors of a file, without their values."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        return {name: torch.Size(file.get_slice(name).get_shape()) for name in names}


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a file with their names, on the CPU, one after the other."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, file.get_tensor(name)
