"""Items on disk, to be had again step by step: files come in any order of steps.

Memory holds sixteen bytes for each: its step, and where it lies.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import IO

import numpy as np

from dashboard.exchange.imports.items import Item, as_tree, from_tree


class Spool:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._steps = array("q")
        self._places = array("q")
        self._end = 0

    def add(self, item: Item) -> None:
        line = json.dumps(as_tree(item)).encode() + b"\n"
        self._steps.append(item.step)
        self._places.append(self._end)
        self._file.write(line)
        self._end += len(line)

    def __len__(self) -> int:
        return len(self._steps)

    def by_step(self) -> Iterator[tuple[int, list[Item]]]:
        """By rising step; within one in the order in which they were added."""
        self._file.flush()
        steps = np.frombuffer(self._steps, dtype=np.int64)
        places = np.frombuffer(self._places, dtype=np.int64)
        order = np.argsort(steps, kind="stable")
        placed = zip(steps[order].tolist(), places[order].tolist(), strict=True)
        for step, items in groupby(placed, key=lambda each: each[0]):
            yield step, [self._read(place) for _, place in items]

    def _read(self, place: int) -> Item:
        self._file.seek(place)
        return from_tree(json.loads(self._file.readline()))
