"""A cache in a process, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ByteCache(Generic[Value]):
    """Drops what was used longest ago. Under a key there is always the same value."""

    def __init__(self, max_bytes: int, *, size: Callable[[Value], int]) -> None:
        self._max_bytes, self._size = max_bytes, size
        self._num_bytes = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def get(
        self, keys: Iterable[Key], read: Callable[[list[Key]], Mapping[Key, Value]]
    ) -> dict[Key, Value]:
        """Return the values of the keys; missing ones are read at once."""
        requested = list(keys)
        with self._lock:
            values = {
                key: self._values[key] for key in requested if key in self._values
            }
            for key in values:
                self._values.move_to_end(key)
        if missing := [key for key in requested if key not in values]:
            fresh = read(missing)
            values.update(fresh)
            with self._lock:
                for key, value in fresh.items():
                    if key not in self._values:
                        self._values[key] = value
                        self._num_bytes += self._size(value)
                while self._num_bytes > self._max_bytes:
                    dropped = self._values.popitem(last=False)[1]
                    self._num_bytes -= self._size(dropped)
        return values
