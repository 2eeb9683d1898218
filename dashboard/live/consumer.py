"""The WebSocket under every live page, and the same stream over HTTP.

A page joins first, then gets what it lacks, then follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.security.websocket import WebsocketDenier
from django.core.exceptions import TooManyFieldsSent
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, JsonResponse, QueryDict

from dashboard.live.messages import (
    ACCESS_ENDED,
    BAD_MESSAGE,
    OTHER_PROTOCOL,
    PROTOCOL,
    TOO_MANY,
    Position,
    other_protocol,
    parse_position,
    parse_protocol,
    parse_request,
)
from dashboard.live.pubsub import ACCESS, subscribe

logger = logging.getLogger(__name__)

FRAME_SECONDS = 0.2  # at most 5 frames a second to one page
POLL_SECONDS = 2.0  # a lost notification costs this much
PING_SECONDS = 15.0  # a page that receives nothing for longer reconnects
RECHECK_SECONDS = 30.0  # where the notification that access ended was lost
MAX_MESSAGE_CHARS = 1_000
# Per user and process: file descriptors are limited. Further pages poll.
MAX_SOCKETS = 50
_num_open: Counter[int] = Counter()  # by user


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # untyped
    """Sends a page what it lacks. Subclasses define access and content."""

    channel_layer_alias = None  # one Subscription for all pages of a group

    async def find_refusal(self) -> int | None:
        """Return a close code when this person may not watch, else None."""
        raise NotImplementedError

    def group(self) -> str:
        """Return the group of notifications; made from what `find_refusal` has
        authorised.
        """
        raise NotImplementedError

    async def read_after(
        self, position: Position, notified_seq: int | None
    ) -> tuple[Position, str] | None:
        """Return the next frame as JSON and the position after it; None: nothing is
        new.

        `notified_seq` is the highest number of a notification, None after a poll.
        """
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # Channels does not call `disconnect` after an error
            await self._leave()

    async def connect(self) -> None:
        try:
            query = QueryDict(self.scope["query_string"])
            self._position = parse_position(query)
            protocol = parse_protocol(query)
        except (ValueError, TooManyFieldsSent):
            await self.close(BAD_MESSAGE)
            return
        self._is_due = asyncio.Event()
        self._must_recheck = False
        # Before the first check, so that a change of access in between is noticed.
        self._access = subscribe(ACCESS)
        await self._access.join(self._access_changed)
        refusal = await self.find_refusal()
        if refusal is None and protocol == PROTOCOL and not self._take_slot():
            refusal = TOO_MANY
        if refusal is not None:
            await self._leave()
            await self.close(refusal)
            return
        if protocol != PROTOCOL:
            await self._leave()
            # Tell a page of another version why; a refused handshake could not.
            await self.accept()
            await self.send(json.dumps(other_protocol()))
            await self.close(OTHER_PROTOCOL)
            return
        self._notified_seq: int | None = None
        self._subscription = subscribe(self.group())
        self._has_request = False
        await self._join()
        await self.accept()
        self._task = asyncio.create_task(self._stream())
        self._task.add_done_callback(self._report)

    def _take_slot(self) -> bool:
        """Return whether this person has a slot left; kept until `_leave`."""
        user_id = self.scope["user"].id
        if _num_open[user_id] >= MAX_SOCKETS:
            return False
        self._slot_of: int = user_id
        _num_open[user_id] += 1
        return True

    async def _join(self) -> None:
        # Before the first read: a notification between the two is not lost.
        await self._subscription.join(self._receive_notification)

    async def _leave(self) -> None:
        """Releases what was acquired; safe to call twice."""
        if hasattr(self, "_task"):
            self._task.cancel()
        if hasattr(self, "_slot_of"):
            _num_open.subtract([self._slot_of])
            del self._slot_of
        if hasattr(self, "_access"):
            await self._access.leave(self._access_changed)
        if hasattr(self, "_subscription"):
            await self._subscription.leave(self._receive_notification)

    def _access_changed(self, user_id: int) -> None:
        if user_id == self.scope["user"].id:
            self._must_recheck = True
            self._is_due.set()

    def _receive_notification(self, seq: int) -> None:
        self._notified_seq = max(self._notified_seq or 0, seq)
        self._is_due.set()

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        try:
            if text_data is None or len(text_data) > MAX_MESSAGE_CHARS:
                raise ValueError("The message is too long or not text.")
            self._position = parse_request(text_data)
        except (ValueError, RecursionError):  # the latter: JSON nested too deep
            await self.close(BAD_MESSAGE)
            return
        self._has_request = True
        self._is_due.set()

    async def _stream(self) -> None:
        last_check = time.monotonic()
        # So that a page that lacks nothing gets a ping at once.
        last_sent = -math.inf
        while True:
            begin = time.monotonic()
            has_request, self._has_request = self._has_request, False
            sent = await self._send_next()
            now = time.monotonic()
            if sent:
                last_sent = now
                await asyncio.sleep(begin + FRAME_SECONDS - now)
            elif has_request:  # limits pages that send many requests
                await asyncio.sleep(FRAME_SECONDS)
            elif now - last_sent > PING_SECONDS:
                last_sent = now
                await self.send(json.dumps({"type": "ping", "seq": self._position.seq}))
            if self._must_recheck or now - last_check > RECHECK_SECONDS:
                last_check, self._must_recheck = now, False
                try:
                    if await self.find_refusal() is not None:
                        await self.close(ACCESS_ENDED)
                except (DatabaseError, InterfaceError):
                    self._must_recheck = True  # checked again in the next round
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._is_due.wait()
            self._is_due.clear()

    async def _send_next(self) -> bool:
        notified_seq, self._notified_seq = self._notified_seq, None
        position = self._position
        try:
            update = await self.read_after(position, notified_seq)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Failed to read updates for %s: %s", self.group(), error)
            return False
        # The page has sent another request meanwhile, which is read next.
        if update is None or self._position != position:
            return False
        self._position, text = update
        # Returns once the page accepts it, so a slow page buffers one frame only.
        await self.send(text_data=text)
        return True

    def _report(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or isinstance(error := task.exception(), OSError):
            return  # the page has left
        if error:
            logger.error("The stream of %s failed.", self.group(), exc_info=error)
            self._closing = asyncio.ensure_future(self.close(1011))


class SameOrigin:
    """Rejects a handshake whose Origin is not the host it was sent to.

    Channels compares only the host name. A page of another program on localhost sends
    our cookies and differs only in its port.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        is_own = host_of(headers.get(b"origin", "")) == headers.get(b"host", "").lower()
        app = self.app if is_own else WebsocketDenier()
        return await app(scope, receive, send)


def host_of(origin: str) -> str | None:
    """Return the host and port of an Origin header; None without any."""
    try:
        return urlsplit(origin.lower()).netloc or None
    except ValueError:
        return None


def answer_page(
    request: HttpRequest, read_after: Callable[[Position], Mapping[str, Any]]
) -> JsonResponse:
    """Read the same frames for a page that polls because its socket does not open.

    409: the page has another version, as over the socket.
    """
    try:
        position = parse_position(request.GET)
        protocol = parse_protocol(request.GET)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    if protocol != PROTOCOL:
        return JsonResponse(other_protocol(), status=409)
    return JsonResponse(read_after(position))
