"""The doorbell: tells open pages that a run has something new. Carries no data."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)


TIMEOUT_SECONDS = 1.0
# While Redis is away every ring would wait for nothing; pages poll meanwhile.
PAUSE_SECONDS = 5.0
_silent_until = 0.0

_starting = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


# One group for everybody: who may look changes seldom, and each group costs a channel.
ACCESS = "access"


def group_name(run_id: int) -> str:
    return f"run-{run_id}"


def ring_access_on_commit(user_id: int) -> None:
    """Have the sockets of this person asked, once it is committed, if they still may.

    Best effort as every ring: they are asked twice a minute anyway.
    """
    transaction.on_commit(lambda: ring_group(ACCESS, user_id), robust=True)


def ring_on_commit(run_id: int, seq: int) -> None:
    """Ring once the transaction has committed. Best effort: it never raises."""
    transaction.on_commit(lambda: ring(run_id, seq), robust=True)


def ring(run_id: int, seq: int) -> None:
    """Ring without waiting; a ring that nobody hears costs a page 2 s at most."""
    ring_group(group_name(run_id), seq)


def ring_group(group: str, seq: int) -> None:
    asyncio.run_coroutine_threadsafe(_ring(group, seq), _bell_loop())


def _bell_loop() -> asyncio.AbstractEventLoop:
    """A loop on a thread of its own, so that ingest never waits for Redis.

    One a process: a forked child has no threads but the one that forked.
    """
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="bell", daemon=True).start()
        return _loops[os.getpid()]


async def _ring(group: str, seq: int) -> None:
    global _silent_until
    if time.monotonic() < _silent_until:
        return
    layer = get_channel_layer()
    assert layer is not None, "CHANNEL_LAYERS names no default layer"
    message = {"type": "run.wake", "seq": seq}
    try:
        await asyncio.wait_for(layer.group_send(group, message), TIMEOUT_SECONDS)
    except (RedisError, OSError, TimeoutError) as error:
        _silent_until = time.monotonic() + PAUSE_SECONDS
        logger.warning("Could not ring for %s: %s", group, error)
