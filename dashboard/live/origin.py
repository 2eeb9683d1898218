"""Which pages may open a socket: Cohort's own."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier


class SameOrigin:
    """Refuses a handshake whose Origin is not the host it was sent to.

    Channels compares the host alone; but a page of another program on localhost
    comes with our cookies, and differs from ours by its port only.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        is_own = _host(headers.get(b"origin", "")) == headers.get(b"host", "").lower()
        app = self.app if is_own else WebsocketDenier()
        return await app(scope, receive, send)


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin.lower()).netloc or None
    except ValueError:
        return None
