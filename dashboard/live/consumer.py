"""The socket under every live page: join first, then replay, then follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import TooManyFieldsSent
from django.db import DatabaseError, InterfaceError
from django.http import QueryDict
from redis.exceptions import RedisError

from dashboard.live.messages import (
    ACCESS_ENDED,
    BAD_MESSAGE,
    Position,
    parse_position,
    parse_request,
)

logger = logging.getLogger(__name__)

FRAME_SECONDS = 0.2  # at most 5 frames a second to one page
POLL_SECONDS = 2.0  # a doorbell that was not heard costs this much
PING_SECONDS = 15.0  # a page that hears nothing for longer reconnects
RECHECK_SECONDS = 30.0  # how long a removed member may go on watching
MAX_MESSAGE_CHARS = 1_000


class StreamConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # untyped
    """Sends a page what it lacks. A subclass says who may look and what there is."""

    async def find_refusal(self) -> int | None:
        """A close code when this person may not watch, else None."""
        raise NotImplementedError

    def group(self) -> str:
        """The doorbell's group; made from what `find_refusal` has authorised."""
        raise NotImplementedError

    async def read_after(
        self, position: Position, rung: int | None
    ) -> tuple[Position, str] | None:
        """The next frame as JSON and the position after it; None: nothing is new.

        `rung` is the highest number the doorbell has named, None after a poll.
        """
        raise NotImplementedError

    async def connect(self) -> None:
        try:
            query = QueryDict(self.scope["query_string"])
            self._position = parse_position(query)
        except (ValueError, TooManyFieldsSent):
            await self.close(BAD_MESSAGE)
            return
        refusal = await self.find_refusal()
        if refusal is not None:
            await self.close(refusal)
            return
        self._bell = asyncio.Event()
        self._rung: int | None = None
        await self._join()
        await self.accept()
        self._task = asyncio.create_task(self._stream())
        self._task.add_done_callback(self._report)

    async def _join(self) -> None:
        # Before the first read: a ring between the two is then heard, not lost.
        try:
            await self.channel_layer.group_add(self.group(), self.channel_name)
        except (RedisError, OSError) as error:
            logger.warning("No doorbell for %s, polling: %s", self.group(), error)

    async def disconnect(self, code: int) -> None:
        if not hasattr(self, "_task"):
            return
        self._task.cancel()
        with contextlib.suppress(RedisError, OSError):
            await self.channel_layer.group_discard(self.group(), self.channel_name)

    async def run_wake(self, message: dict[str, Any]) -> None:
        self._rung = max(self._rung or 0, message["seq"])
        self._bell.set()

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        try:
            if text_data is None or len(text_data) > MAX_MESSAGE_CHARS:
                raise ValueError("Too long, or not text.")
            self._position = parse_request(text_data)
        except (ValueError, RecursionError):  # the latter: JSON nested too deep
            await self.close(BAD_MESSAGE)
            return
        self._bell.set()

    async def _stream(self) -> None:
        last_check = time.monotonic()
        last_sent = float("-inf")  # a page that lacks nothing hears so at once
        while True:
            sent = await self._send_next()
            now = time.monotonic()
            if sent:
                last_sent = now
                await asyncio.sleep(FRAME_SECONDS)
            elif now - last_sent > PING_SECONDS:
                last_sent = now
                await self._ping()
            if now - last_check > RECHECK_SECONDS:
                last_check = now
                await self._check_access()
            await self._wait_for_bell()

    async def _send_next(self) -> bool:
        rung, self._rung = self._rung, None
        asked = self._position
        try:
            found = await self.read_after(asked, rung)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("Could not read for %s: %s", self.group(), error)
            return False
        # The page asked for something else meanwhile: that is read next.
        if found is None or self._position != asked:
            return False
        self._position, text = found
        # Returns once the page takes it, so a slow page holds one frame, not many.
        await self.send(text_data=text)
        return True

    async def _ping(self) -> None:
        await self.send(json.dumps({"type": "ping", "seq": self._position.seq}))

    async def _check_access(self) -> None:
        try:
            refusal = await self.find_refusal()
        except (DatabaseError, InterfaceError):
            return  # asked again in half a minute
        if refusal is not None:
            await self.close(ACCESS_ENDED)
            return
        # The layer forgets a member after a day; joining again renews it.
        await self._join()

    async def _wait_for_bell(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), POLL_SECONDS)
        self._bell.clear()

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            logger.error("The stream of %s broke.", self.group(), exc_info=error)
            self._closing = asyncio.ensure_future(self.close(1011))
