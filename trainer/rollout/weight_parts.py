"""A model's weights in parts that fit into memory beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch


def in_parts(
    weights: Iterable[tuple[str, torch.Tensor]], *, num_bytes: int
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Lists of at most so many bytes, in order; a larger weight has one of its own."""
    part: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, weight in weights:
        if part and size + weight.nbytes > num_bytes:
            yield part
            part, size = [], 0
        part.append((name, weight))
        size += weight.nbytes
    if part:
        yield part
