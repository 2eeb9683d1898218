"""Counts sockets and what is sent through them, around whatever serves them."""

from __future__ import annotations

from typing import Any

from dashboard.meters.web import FRAME_BYTES, FRAMES, SOCKETS


class CountedSockets:
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
