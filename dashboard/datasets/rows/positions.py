"""Positions of rows, a million of them at most, kept in one field of a finding."""

from __future__ import annotations

import numpy as np
from django.db.models import BinaryField, F, Func, Value
from numpy.typing import NDArray

from dashboard.datasets.models import Finding

BYTES = np.dtype("<u4")


def as_bytes(positions: NDArray[np.int64]) -> bytes:
    return positions.astype(BYTES).tobytes()


def read_positions(found: Finding, field: str, first: int, number: int) -> list[int]:
    """Part of the list; one query, which sends no more than that part."""
    part = Func(
        F(field),
        Value(first * BYTES.itemsize + 1),
        Value(number * BYTES.itemsize),
        function="substring",
        output_field=BinaryField(),
    )
    held = type(found)._default_manager.filter(pk=found.pk)
    positions: list[int] = np.frombuffer(
        bytes(held.values_list(part, flat=True).get()), BYTES
    ).tolist()
    return positions
