"""How often a program may ask, counted in Redis by the minute.

Without Redis nothing is counted: a server that lost it still answers, as its pages do.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)
WINDOW_SECONDS = 60
MAX_OF_TOKEN = 600
MAX_OF_INGEST = 1_200  # a trainer that reports each step, of several runs
MAX_OF_ADDRESS = 60  # without a token that works


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    limit: int
    remaining: int
    reset_seconds: int
    is_over: bool

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_seconds),
        }


def count_request(who: str, most: int) -> Count | None:
    """One more of `who`; None where Redis does not answer."""
    now = time.time()
    window, into = divmod(now, WINDOW_SECONDS)
    key = f"cohort:api:{who}:{int(window)}"
    try:
        with _client().pipeline(transaction=False) as pipeline:
            pipeline.incr(key)
            pipeline.expire(key, 2 * WINDOW_SECONDS)
            counted: list[Any] = pipeline.execute()
    except redis.RedisError as error:
        logger.warning("Requests of the API are not counted: %s", error)
        return None
    return Count(
        limit=most,
        remaining=max(0, most - counted[0]),
        reset_seconds=max(1, round(WINDOW_SECONDS - into)),
        is_over=counted[0] > most,
    )


@cache
def _client() -> redis.Redis:
    at_once = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, retry=at_once)
