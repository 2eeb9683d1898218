"""A number for each request and socket, which all that it causes bears in the log."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from dashboard.logs.facts import bound
from dashboard.logs.origins import is_of_this_machine

HEADER = b"x-request-id"
WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
STARTS = ("http.response.start", "websocket.accept")


class RequestIds:
    """Takes X-Request-ID from whom we trust, else makes one; says it in the answer.

    Trusted are programs on this machine, and with `trusts_proxy` everybody: then a
    proxy in front sets the header itself, whatever the visitor sent.
    """

    def __init__(self, app: Any, *, trusts_proxy: bool) -> None:
        self.app = app
        self.trusts_proxy = trusts_proxy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_id = self._given(scope) or uuid4().hex

        async def send_with_id(message: Any) -> None:
            if message["type"] in STARTS:
                told = (HEADER, request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), told]}
            await send(message)

        with bound(request_id=request_id):
            await self.app(scope, receive, send_with_id)

    def _given(self, scope: Any) -> str | None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        given = headers.get("x-request-id", "")
        if not WELL_FORMED.fullmatch(given):
            return None
        address = (scope.get("client") or ("", 0))[0]
        is_own = is_of_this_machine(address, headers.get("host", ""), headers)
        return given if self.trusts_proxy or is_own else None
