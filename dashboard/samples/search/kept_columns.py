"""Columns of blocks as a process keeps them, so that the next page need not read them.

Blocks never change, so nothing kept grows stale; the longest unused goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Lock
from typing import TypeVar

from dashboard.samples.search.columns import Column

MOST_BYTES = 256 * 2**20
Key = TypeVar("Key", bound=Hashable)


class KeptColumns:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._columns: OrderedDict[Hashable, Column] = OrderedDict()
        self._lock = Lock()

    def get(
        self,
        keys: Iterable[Key],
        read: Callable[[list[Key]], Mapping[Key, Column]],
    ) -> dict[Key, Column]:
        """Those of the keys; what is not kept is read in one go."""
        wanted = list(keys)
        with self._lock:
            found = {key: self._columns[key] for key in wanted if key in self._columns}
            for key in found:
                self._columns.move_to_end(key)
        if missing := [key for key in wanted if key not in found]:
            fresh = read(missing)
            found.update(fresh)
            self._keep(fresh)
        return found

    def clear(self) -> None:
        with self._lock:
            self._columns.clear()
            self._num_bytes = 0

    def _keep(self, fresh: Mapping[Key, Column]) -> None:
        with self._lock:
            for key, column in fresh.items():
                if key not in self._columns:
                    self._columns[key] = column
                    self._num_bytes += column.nbytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._columns.popitem(last=False)[1].nbytes


kept = KeptColumns(MOST_BYTES)
