"""The doorbell: tells open pages that a run has something new. Carries no data."""

from __future__ import annotations

import asyncio
import logging
import time

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
# While Redis is away every ring would cost its timeout; pages poll meanwhile.
PAUSE_SECONDS = 5.0
_silent_until = 0.0


def group_name(run_id: int) -> str:
    return f"run-{run_id}"


def ring_on_commit(run_id: int, seq: int) -> None:
    """Ring once the transaction has committed. Best effort: it never raises."""
    transaction.on_commit(lambda: ring(run_id, seq), robust=True)


def ring(run_id: int, seq: int) -> bool:
    """Ring now; False when the bell was not heard, which costs a page 2 s at most."""
    global _silent_until
    if time.monotonic() < _silent_until:
        return False
    try:
        async_to_sync(_send)(run_id, seq)
    except (RedisError, OSError, TimeoutError) as error:
        _silent_until = time.monotonic() + PAUSE_SECONDS
        logger.warning("Could not ring for run %s: %s", run_id, error)
        return False
    return True


async def _send(run_id: int, seq: int) -> None:
    layer = get_channel_layer()
    assert layer is not None, "CHANNEL_LAYERS names no default layer"
    message = {"type": "run.wake", "run": run_id, "seq": seq}
    await asyncio.wait_for(
        layer.group_send(group_name(run_id), message), TIMEOUT_SECONDS
    )
