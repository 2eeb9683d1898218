"""Prometheus metrics of a web process; each process reports its own.

With several behind one port (`uvicorn --workers`) set PROMETHEUS_MULTIPROC_DIR of
prometheus_client: each process then reports the sum.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client import multiprocess as several

registry = CollectorRegistry()
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUESTS = Counter(
    "cohort_http_requests",
    "Requests by route name.",
    ["route", "method", "status"],
    registry=registry,
)
DURATIONS = Histogram(
    "cohort_http_request_duration_seconds",
    "Time from the request reaching Django to the start of the response.",
    ["route"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0),
    registry=registry,
)
SOCKETS = Gauge(
    "cohort_sockets_open",
    "Open WebSockets.",
    multiprocess_mode="livesum",
    registry=registry,
)
FRAMES = Counter("cohort_socket_frames", "WebSocket frames sent.", registry=registry)
FRAME_BYTES = Counter(
    "cohort_socket_frame_bytes", "Bytes of WebSocket frames sent.", registry=registry
)
MCP_CALLS = Counter(
    "cohort_mcp_calls",
    "Calls of MCP tools by outcome: ok, or the code of the problem.",
    ["tool", "outcome"],
    registry=registry,
)
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)


def count_request(route: str, method: str | None, status: int, seconds: float) -> None:
    REQUESTS.labels(
        route, method if method in METHODS else "other", f"{status // 100}xx"
    ).inc()
    DURATIONS.labels(route).observe(seconds)


def readable() -> CollectorRegistry:
    """Return the registry to read: of this process, or of all that share the folder."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder:
        return registry
    # Resets the open sockets of a killed process.
    for path in Path(folder).glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
    shared = CollectorRegistry()
    several.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]  # it has none
    return shared


class CountedSockets:
    """Counts sockets and their frames."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_open = False

        async def send_counted(message: Any) -> None:
            nonlocal is_open
            await send(message)
            if message["type"] == "websocket.accept":
                is_open = True
                SOCKETS.inc()
            elif message["type"] == "websocket.send":
                FRAMES.inc()
                text = message.get("text")
                sent = text.encode() if text is not None else message.get("bytes", b"")
                FRAME_BYTES.inc(len(sent))

        try:
            await self.app(scope, receive, send_counted)
        finally:
            if is_open:
                SOCKETS.dec()
