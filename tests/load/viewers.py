"""Pages without a browser: many sockets in one process, with a command per line.

`python -m tests.load.viewers ADDRESS RUN COOKIE…` reads a command a line, as JSON, and
answers each with a line. They speak the protocol of dashboard/live/README.md as
static/js/live/stream.js does, and hold what they were sent.
"""

import asyncio
import contextlib
import json
import math
import random
import socket
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

FIRST_WAIT = 0.5
LONGEST_WAIT = 15.0
# So that what the kernel holds for a socket that is not read is soon full.
SMALL_BUFFER = 16 * 1024
Values = dict[str, float]


@lru_cache(maxsize=64)
def parse(text: str) -> dict[str, Any]:
    """Cached, because many viewers receive the same frame."""
    frame: dict[str, Any] = json.loads(text)
    return frame


@dataclass
class Held:
    """A page's data: the last snapshot and later batches."""

    seq: int = 0
    attempt: int | None = None
    last_step: int = 0
    steps: dict[int, Values] = field(default_factory=dict)
    snapshot: dict[str, Any] | None = None

    def take(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "snapshot":
            self.snapshot, self.steps = frame, {}
        for step in frame["steps"]:
            self.steps[step["step"]] = step["values"]
        self.seq, self.attempt = frame["seq"], frame["attempt"]
        self.last_step = frame["run"]["last_step"]

    def find_fault(self, truth: dict[str, Any]) -> str | None:
        """The first difference from the database."""
        for name in ("seq", "attempt", "last_step"):
            if (mine := getattr(self, name)) != truth[name]:
                return f"{name} is {mine}, not {truth[name]}"
        begin = 0 if self.snapshot is None else self.snapshot["run"]["last_step"]
        for step, values in truth["steps"].items():
            if int(step) > begin and self.steps.get(int(step)) != values:
                return f"step {step} is {self.steps.get(int(step))}, not {values}"
        if len(self.steps) != len(truth["steps"]) - begin:
            return f"{len(self.steps)} steps after step {begin}"
        return self._find_fault_of_curves(truth["steps"], begin)

    def _find_fault_of_curves(self, steps: dict[str, Values], begin: int) -> str | None:
        """A downsampled curve has measured points of every bucket."""
        if self.snapshot is None or begin == 0:
            return None
        curves = self.snapshot["curves"]
        for name, curve in curves["names"].items():
            at = curve.get("steps", curves["clock"]["steps"])
            for step, value in zip(at, curve["values"], strict=True):
                # Curves are sent in seven digits.
                if not math.isclose(steps[str(step)][name], value, rel_tol=1e-6):
                    return f"{name} of step {step} is {value}"
            buckets = {step // curves["width"] for step in at}
            wanted = {step // curves["width"] for step in range(1, begin + 1)}
            if buckets != wanted:
                return f"{name} lacks {sorted(wanted - buckets)[:5]} of its buckets"
        return None


class Viewer:
    """A page: connects, receives frames, requests missing data, reconnects."""

    def __init__(self, address: str, run_id: str, cookie: str) -> None:
        self._url = f"ws://{urlsplit(address).netloc}/ws/runs/{run_id}/"
        self._headers = {"Cookie": cookie}
        self._origin = address
        self.held = Held()
        self.delays = array("d")  # seconds from a step's line to its receipt
        self.num_bytes = self.num_frames = self.num_connections = self.num_noted = 0
        self.is_read = asyncio.Event()
        self.is_read.set()
        self.has_begun = asyncio.Event()
        self._has_news = asyncio.Event()  # a connection, or a frame
        self.is_small = False
        self._socket: ClientConnection | None = None
        self.refusals: list[str] = []

    async def watch(self) -> None:
        failures = 0
        while True:
            try:
                await self._watch_once()
                failures = 0
            except (OSError, InvalidStatus, TimeoutError, EOFError) as error:
                self.refusals.append(f"{type(error).__name__}: {error}")
                failures += 1
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** max(0, failures - 1))
            await asyncio.sleep(wait * (0.5 + random.random() / 2))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """For one who waits at a time."""
        while not is_so():
            self._has_news.clear()
            await self._has_news.wait()

    def lose(self) -> None:
        """As in a network outage: without a close frame."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def _watch_once(self) -> None:
        attempt = "" if self.held.attempt is None else f"&attempt={self.held.attempt}"
        url = f"{self._url}?after={self.held.seq}{attempt}"
        options: dict[str, Any] = {"max_queue": 64, "open_timeout": 30}
        if self.is_small:
            options |= {"max_queue": 1, "sock": await self._small_socket()}
        async with connect(
            url,
            origin=self._origin,  # type: ignore[arg-type]  # it is but a str
            additional_headers=self._headers,
            max_size=None,
            ping_interval=None,  # as a browser: it answers pings and sends none
            proxy=None,
            **options,
        ) as self._socket:
            self.num_connections += 1
            self._has_news.set()
            try:
                while True:
                    await self.is_read.wait()
                    text = await self._socket.recv()
                    assert isinstance(text, str)
                    await self._take(text, time.time())
            except ConnectionClosed:
                return

    async def _small_socket(self) -> socket.socket:
        at = urlsplit(self._url)
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (at.hostname, at.port))
        return made

    async def _take(self, text: str, now: float) -> None:
        self.num_frames += 1
        self.num_bytes += len(text)
        await self._heed(parse(text), now)
        self._has_news.set()

    async def _heed(self, frame: dict[str, Any], now: float) -> None:
        if frame["type"] == "ping":
            if frame["seq"] > self.held.seq:
                await self._ask()
            self.has_begun.set()
            return
        if frame["type"] == "batch":
            is_gap = frame["after"] > self.held.seq
            if is_gap or self.held.attempt not in (None, frame["attempt"]):
                await self._ask()
                return
            if frame["seq"] <= self.held.seq:
                return
            for step in frame["steps"]:
                self.delays.append(now - step["time"])
        falls_back = frame["run"]["last_step"] < self.held.last_step
        self.held.take(frame)
        self.has_begun.set()
        if falls_back and frame["type"] == "batch":
            self.held.seq, self.held.attempt = 0, None
            await self._ask()

    async def _ask(self) -> None:
        assert self._socket is not None
        asked = {"type": "after", "seq": self.held.seq, "attempt": self.held.attempt}
        await self._socket.send(json.dumps(asked))


class Crowd:
    """Groups of viewers by name, and their commands."""

    def __init__(self, address: str, run_id: str, cookies: Sequence[str]) -> None:
        self._place = (address, run_id)
        self._cookies = cycle(cookies)  # one person's after the other
        self._groups: dict[str, list[Viewer]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    async def come(
        self, *, group: str, count: int, over: float = 0, is_small: bool = False
    ) -> dict[str, Any]:
        """Each within these seconds; responds when all have a first frame."""
        begin = time.monotonic()
        new = [Viewer(*self._place, next(self._cookies)) for _ in range(count)]
        for number, viewer in enumerate(new):
            viewer.is_small = is_small
            due = begin + over * number / count
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(viewer.watch())
            self._tasks.setdefault(group, []).append(task)
            self._groups.setdefault(group, []).append(viewer)
        await asyncio.gather(*(viewer.has_begun.wait() for viewer in new))
        return {"seconds": time.monotonic() - begin}

    async def leave(self, *, group: str) -> dict[str, Any]:
        tasks = self._tasks.pop(group, [])
        self._groups.pop(group, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return {}

    async def see(self, *, group: str, count: int) -> dict[str, Any]:
        """Responds when each viewer has received this many further events."""
        begin = time.monotonic()
        for viewer, seq in [(v, v.held.seq + count) for v in self._groups[group]]:
            await self._until(viewer, seq, begin)
        return {}

    async def stall(self, *, group: str) -> dict[str, Any]:
        for viewer in self._groups[group]:
            viewer.is_read.clear()
        return {"seq": self._newest()}

    async def read_on(self, *, group: str) -> dict[str, Any]:
        """Responds when each has caught up with the newest event at the call."""
        begin, newest = time.monotonic(), self._newest()
        behind = [newest - viewer.held.seq for viewer in self._groups[group]]
        for viewer in self._groups[group]:
            viewer.is_read.set()
        seconds = [
            await self._until(viewer, newest, begin) for viewer in self._groups[group]
        ]
        return {"behind": behind, "seconds": max(seconds)}

    async def reconnect(self, *, group: str, over: float) -> dict[str, Any]:
        """All lose their connection, at random times within these seconds."""
        begin = time.monotonic()
        delays = await asyncio.gather(
            *(
                self._lose(viewer, begin + over * random.random())
                for viewer in self._groups[group]
            )
        )
        return {"seconds": time.monotonic() - begin, "delays": sorted(delays)}

    async def _lose(self, viewer: Viewer, at: float) -> float:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        before = viewer.num_connections
        viewer.lose()
        begin = time.monotonic()
        await viewer.until(lambda: viewer.num_connections > before)
        # A viewer is current if it has everything that any viewer has seen by now.
        return await self._until(viewer, self._newest(), begin)

    async def note(self, *, group: str) -> dict[str, Any]:
        """Have `come_back` count connections from now on."""
        for viewer in self._groups[group]:
            viewer.num_noted = viewer.num_connections
        return {}

    async def come_back(self, *, group: str) -> dict[str, Any]:
        """Responds when each has reconnected and receives new data."""
        begin, newest = time.monotonic(), self._newest()
        seconds = [
            await self._come_back(viewer, newest, begin)
            for viewer in self._groups[group]
        ]
        return {"seconds": max(seconds)}

    async def _come_back(self, viewer: Viewer, seq: int, begin: float) -> float:
        await viewer.until(lambda: viewer.num_connections > viewer.num_noted)
        return await self._until(viewer, seq + 1, begin)

    async def finish(
        self, *, group: str, truth: str, patience: float = 60
    ) -> dict[str, Any]:
        """Compare their data with the database, at the run's end."""
        with open(truth) as file:  # noqa: ASYNC230 - nothing else goes on by now
            wanted = json.load(file)
        viewers = self._groups[group]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for viewer in viewers:
                    await self._until(viewer, wanted["seq"], 0)
        faults = [viewer.held.find_fault(wanted) for viewer in viewers]
        return {
            "viewers": len(viewers),
            "faults": [fault for fault in faults if fault],
            "with_snapshot": sum(
                bool(v.held.snapshot and v.held.snapshot["run"]["last_step"])
                for v in viewers
            ),
            "connections": sum(v.num_connections for v in viewers),
            "refusals": [refusal for v in viewers for refusal in v.refusals][:5],
        }

    async def measure(self, *, group: str) -> dict[str, Any]:
        """Delays, frames and characters since the last call."""
        viewers = self._groups[group]
        delays = sorted(delay for viewer in viewers for delay in viewer.delays)
        found = {
            "count": len(delays),
            "p50": _quantile(delays, 0.5),
            "p95": _quantile(delays, 0.95),
            "max": _quantile(delays, 1),
            "frames": sum(viewer.num_frames for viewer in viewers),
            "bytes": sum(viewer.num_bytes for viewer in viewers),
        }
        for viewer in viewers:
            viewer.delays = array("d")
            viewer.num_frames = viewer.num_bytes = 0
        return found

    async def _until(self, viewer: Viewer, seq: int, begin: float) -> float:
        await viewer.until(lambda: viewer.held.seq >= seq)
        return time.monotonic() - begin

    def _newest(self) -> int:
        everybody = (v for group in self._groups.values() for v in group)
        return max(viewer.held.seq for viewer in everybody)


def _quantile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def serve(address: str, run_id: str, *cookies: str) -> None:
    crowd = Crowd(address, run_id, cookies)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        answer = await getattr(crowd, command.pop("do"))(**command)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
