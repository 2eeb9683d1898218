"""Notifications that a run or a user's access has changed; they carry no data.

A process subscribes to a group once for all of its pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

# The layer forgets a member after a day, and a Redis that restarts forgets all.
RENEW_SECONDS = 30.0
RETRY_SECONDS = 2.0
JOIN_SECONDS = 1.0  # a page that waits longer for Redis polls
TIMEOUT_SECONDS = 1.0
# Without Redis every notification would time out; pages poll meanwhile.
PAUSE_SECONDS = 5.0
# One group for all users: access changes rarely, and each group costs a channel.
ACCESS = "access"
Listener = Callable[[int], None]  # gets the notification's number

_silent_until = 0.0
_starting = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


class Subscription:
    """Subscribes to a group while it has listeners.

    With one channel per page a notification would cost as much as there are pages, and
    more, since the Redis layer's readers take turns at one queue.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_joined = asyncio.Event()

    async def join(self, listener: Listener) -> None:
        """Messages sent after this arrive, unless Redis is down."""
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
        assert layer is not None, "CHANNEL_LAYERS has no default layer"
        channel = await layer.new_channel()
        try:
            while True:
                try:
                    await layer.group_add(self._group, channel)
                    has_joined.set()
                    until = time.monotonic() + RENEW_SECONDS
                    with contextlib.suppress(TimeoutError):
                        while (remaining := until - time.monotonic()) > 0:
                            async with asyncio.timeout(remaining):
                                message = await layer.receive(channel)
                            for listener in tuple(self._listeners):
                                listener(message["seq"])
                except (RedisError, OSError) as error:
                    logger.warning(
                        "Failed to receive notifications for %s: %s", self._group, error
                    )
                    has_joined.set()
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            with contextlib.suppress(RedisError, OSError):
                await layer.group_discard(self._group, channel)


_subscriptions: WeakValueDictionary[str, Subscription] = WeakValueDictionary()


def subscribe(group: str) -> Subscription:
    """Return the process's subscription of this group; it lives as long as a page uses
    it.
    """
    return _subscriptions.setdefault(group, Subscription(group))


def group_name(run_id: int) -> str:
    return f"run-{run_id}"


def notify_access_on_commit(user_id: int) -> None:
    """Make the sockets of this user check their access again, after the commit.

    Best effort: they check twice a minute anyway.
    """
    transaction.on_commit(lambda: notify_group(ACCESS, user_id), robust=True)


def notify_on_commit(run_id: int, seq: int) -> None:
    """Notify once the transaction has committed. Best effort: it never raises."""
    transaction.on_commit(lambda: notify(run_id, seq), robust=True)


def notify(run_id: int, seq: int) -> None:
    """Notify without waiting; one that is lost costs a page 2 s at most."""
    notify_group(group_name(run_id), seq)


def notify_group(group: str, seq: int) -> None:
    asyncio.run_coroutine_threadsafe(_send(group, seq), _subscription_loop())


def _subscription_loop() -> asyncio.AbstractEventLoop:
    """Start a loop on its own thread, so that ingest never waits for Redis.

    One per process: a forked child keeps only the forking thread.
    """
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(
                target=loop.run_forever, name="subscriptions", daemon=True
            ).start()
        return _loops[os.getpid()]


async def _send(group: str, seq: int) -> None:
    global _silent_until
    if time.monotonic() < _silent_until:
        return
    layer = get_channel_layer()
    assert layer is not None, "CHANNEL_LAYERS has no default layer"
    message = {"type": "run.wake", "seq": seq}
    try:
        await asyncio.wait_for(layer.group_send(group, message), TIMEOUT_SECONDS)
    except (RedisError, OSError, TimeoutError) as error:
        _silent_until = time.monotonic() + PAUSE_SECONDS
        logger.warning("Failed to notify %s: %s", group, error)
