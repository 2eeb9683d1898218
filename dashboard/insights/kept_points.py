"""Points as a process keeps them, so that the next page need not read them.

They hold as long as the number of the run's last event is what it was when they were
read: whatever adds or supersedes a step moves it, in the same transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

from dashboard.runs.models import Run

MOST_BYTES = 128 * 2**20


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=Sized)
Key = tuple[int, str, str]  # run, metric, axis


@dataclass(frozen=True, slots=True)
class Version:
    """What of a run's history was read."""

    epoch: int
    seq: int


class KeptPoints(Generic[Value]):
    """The newest of each run, metric and axis; the longest unused go first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._values: OrderedDict[Key, tuple[Version, Value]] = OrderedDict()
        self._lock = Lock()

    def find(self, run: Run, metric: str, axis: str) -> Value | None:
        key = (run.pk, metric, axis)
        with self._lock:
            version, value = self._values.get(key, (None, None))
            if version != Version(run.epoch, run.seq):
                return None
            self._values.move_to_end(key)
            return value

    def keep(self, run: Run, metric: str, axis: str, value: Value) -> None:
        key = (run.pk, metric, axis)
        with self._lock:
            if key in self._values:
                self._num_bytes -= self._values.pop(key)[1].nbytes
            self._values[key] = (Version(run.epoch, run.seq), value)
            self._num_bytes += value.nbytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._values.popitem(last=False)[1][1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._num_bytes = 0
