"""One read of a run for all its viewers in this process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

from channels.db import database_sync_to_async

from dashboard.live.consumer import FRAME_SECONDS
from dashboard.live.messages import Frame, Position
from dashboard.runs.live_frames import (
    MAX_BEHIND,
    is_within_reach,
    read_batch,
    read_run,
    read_snapshot,
)
from dashboard.runs.models import Run

# Viewers that poll within the same second share one look at the run's row.
FRESH_SECONDS = 1.0
# Honest viewers stand at a handful of places; others could ask for thousands.
MAX_ENCODED = 32
Encoded = tuple[Position, str]
Given = ParamSpec("Given")
Found = TypeVar("Found")


class Feed:
    """The newest part of a run's stream, kept while somebody watches.

    Viewers stand at few different numbers, so what each lacks is encoded once.
    """

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._run: Run | None = None  # as last read
        self._floor = 0  # the batches hold all that came after this number
        self._batches: deque[Frame] = deque()
        self._snapshot: Encoded | None = None
        self._encoded: dict[Position, Encoded] = {}

    async def read_after(self, position: Position, rung: int | None) -> Encoded | None:
        """What a viewer at this position lacks; None when it lacks nothing."""
        async with self._lock:
            run = await self._catch_up(rung)
            if position == Position(run.seq, run.attempt):
                return None
            if position not in self._encoded:
                if len(self._encoded) == MAX_ENCODED:
                    self._encoded.clear()
                self._encoded[position] = await self._encode_after(run, position)
            return self._encoded[position]

    async def _catch_up(self, rung: int | None) -> Run:
        if self._run is not None and self._is_fresh(self._run, rung):
            return self._run
        # Viewers that wait here together are then at one place, and get one frame.
        await asyncio.sleep(self._looked_at + FRAME_SECONDS - time.monotonic())
        self._looked_at = time.monotonic()
        run = await _read(read_run, self._run_id)
        before = self._run
        if before is None or not is_within_reach(run, _position(before)):
            self._begin_at(run)
        elif run.seq > before.seq:
            self._add(await _read(read_batch, run, before.seq))
            if run.last_step < before.last_step:
                self._snapshot = None  # of a history that was gone back before
        self._run = run
        return run

    def _is_fresh(self, run: Run, rung: int | None) -> bool:
        if rung is not None:
            return run.seq >= rung
        return time.monotonic() - self._looked_at < FRESH_SECONDS

    def _begin_at(self, run: Run) -> None:
        self._floor = run.seq
        self._batches.clear()
        self._snapshot = None
        self._encoded.clear()

    def _add(self, batch: Frame) -> None:
        self._batches.append(batch)
        self._encoded.clear()
        while batch["seq"] - self._floor > MAX_BEHIND:
            self._floor = self._batches.popleft()["seq"]

    async def _encode_after(self, run: Run, position: Position) -> Encoded:
        if self._floor <= position.seq <= run.seq and position.attempt == run.attempt:
            return _encode(self._join_after(position.seq))
        if await _read(is_within_reach, run, position):
            return await _read(_encode_batch, run, position.seq)
        if self._snapshot is None or self._snapshot[0].seq < self._floor:
            self._snapshot = await _read(_encode_snapshot, run)
        return self._snapshot

    def _join_after(self, seq: int) -> Frame:
        missed = [batch for batch in self._batches if batch["seq"] > seq]
        joined = missed[-1].copy()
        joined["after"] = seq
        joined["steps"] = _join(seq, [b["steps"] for b in missed])
        joined["evaluations"] = _join(seq, [b["evaluations"] for b in missed])
        joined["events"] = _join(seq, [b["events"] for b in missed])
        return joined


def _join(after: int, parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for row in chain.from_iterable(parts) if row["seq"] > after]


def _position(run: Run) -> Position:
    return Position(run.seq, run.attempt)


def _encode(frame: Frame) -> Encoded:
    text = json.dumps(frame, allow_nan=False, separators=(",", ":"))
    return Position(frame["seq"], frame["attempt"]), text


def _encode_batch(run: Run, after: int) -> Encoded:
    return _encode(read_batch(run, after))


def _encode_snapshot(run: Run) -> Encoded:
    return _encode(read_snapshot(run))


async def _read(
    function: Callable[Given, Found], *args: Given.args, **kwargs: Given.kwargs
) -> Found:
    # Reads of different runs may go side by side: each has its own connection.
    in_thread = database_sync_to_async(function, thread_sensitive=False)
    return cast("Found", await in_thread(*args, **kwargs))


_feeds: WeakValueDictionary[int, Feed] = WeakValueDictionary()


def feed_of(run_id: int) -> Feed:
    """The process's feed of this run; it lives as long as a viewer holds it."""
    return _feeds.setdefault(run_id, Feed(run_id))
