"""Hearing the doorbell: once in this process for all pages of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from channels.layers import get_channel_layer
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

# The layer forgets a member after a day, and a Redis that restarts forgets all.
RENEW_SECONDS = 30.0
RETRY_SECONDS = 2.0
JOIN_SECONDS = 1.0  # whoever waits longer for Redis polls meanwhile
Listener = Callable[[int], None]  # told the number that was rung


class Bell:
    """The doorbell of a group, heard while anybody listens.

    With a channel for each page a ring costs as much as there are pages, and more, as
    the Redis layer's readers take turns at one queue.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_joined = asyncio.Event()

    async def join(self, listener: Listener) -> None:
        """Whatever is rung after this is heard, unless Redis is away."""
        self._listeners.add(listener)
        if self._task is None:
            self._has_joined = asyncio.Event()
            self._task = asyncio.create_task(self._listen(self._has_joined))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_SECONDS):
                await self._has_joined.wait()

    async def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if self._listeners or self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.wait([task])

    async def _listen(self, has_joined: asyncio.Event) -> None:
        layer = get_channel_layer()
        assert layer is not None, "CHANNEL_LAYERS names no default layer"
        channel = await layer.new_channel()
        try:
            while True:
                try:
                    await layer.group_add(self._group, channel)
                    has_joined.set()
                    await self._hear(layer, channel)
                except (RedisError, OSError) as error:
                    logger.warning("No doorbell for %s: %s", self._group, error)
                    has_joined.set()
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            with contextlib.suppress(RedisError, OSError):
                await layer.group_discard(self._group, channel)

    async def _hear(self, layer: Any, channel: str) -> None:
        until = time.monotonic() + RENEW_SECONDS
        with contextlib.suppress(TimeoutError):
            while (left := until - time.monotonic()) > 0:
                async with asyncio.timeout(left):
                    message = await layer.receive(channel)
                for tell in tuple(self._listeners):
                    tell(message["seq"])


_bells: WeakValueDictionary[str, Bell] = WeakValueDictionary()


def bell_of(group: str) -> Bell:
    """The process's bell of this group; it lives as long as a page holds it."""
    return _bells.setdefault(group, Bell(group))
