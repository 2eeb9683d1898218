"""How much one request may send.

Under ASGI Django keeps a request's whole body on disk before it asks who sent it, so
that anybody could fill the disk that the database lives on.
"""

from __future__ import annotations

from typing import Any

# The largest file that a browser without scripts can send, and the form around it.
MAX_BODY_BYTES = 33 * 2**20
REFUSAL = (
    f"The request holds more than {MAX_BODY_BYTES:,} bytes, which is more than any "
    "page here takes at once. Send a smaller file, or switch JavaScript on.\n"
)


class BodyLimit:
    """Answers 413 to a body that says it is too long, and hangs up on one that is."""

    def __init__(self, app: Any, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self.max_bytes:
            await _refuse(send)
            return
        num_bytes = 0

        async def receive_some() -> Any:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            # Django takes this for a visitor who has left, and deletes the rest.
            too_long = num_bytes > self.max_bytes
            return {"type": "http.disconnect"} if too_long else message

        await self.app(scope, receive_some, send)


async def _refuse(send: Any) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL.encode()})
