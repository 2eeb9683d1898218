"""Limits of sign-in attempts and API requests, counted in Redis.

Attempts are counted before the password is checked, so parallel guesses do not escape
the limit. A browser that this user has signed in from has its own limit. Attempts from
other browsers count for the username, the address, and both together, so guessing does
not lock the owner out of a known browser.

Without Redis nothing is counted: a server without Redis must still let people sign in.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.accounts.models import User
from dashboard.web.budgets import network_of

logger = logging.getLogger(__name__)
WINDOW_SECONDS = 15 * 60
MAX_OF_DEVICE = 10
MAX_OF_PAIR = 10  # a username from an address
MAX_OF_USERNAME = 30  # from anywhere
MAX_OF_ADDRESS = 50  # an office of many people may share one
LONGEST_NAME = 200  # for every later attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    number: int
    seconds_left: int  # until it restarts


def count(key: str, *, within_seconds: int) -> Counted | None:
    """Count one more of the key; None if Redis does not respond."""
    try:
        with redis_client().pipeline(transaction=True) as pipeline:
            pipeline.set(key, 0, ex=within_seconds, nx=True)
            pipeline.incr(key)
            pipeline.ttl(key)
            _, number, seconds = pipeline.execute()
        if seconds < 0:  # `reset_tries` recreated it, just after it expired
            seconds = within_seconds
            redis_client().expire(key, seconds)
    except redis.RedisError as error:
        logger.warning("Failed to count attempts and requests: %s", error)
        return None
    return Counted(number=number, seconds_left=max(1, seconds))


@contextmanager
def one_at_a_time(key: str, *, most_seconds: float) -> Iterator[bool]:
    """Hold the key, and yield True; False if another request holds it.

    `most_seconds`: how long it is held if this process dies. Without Redis no one is
    refused.
    """
    lock = redis_client().lock(key, timeout=most_seconds)
    try:
        is_free = lock.acquire(blocking=False)
    except redis.RedisError as error:
        logger.warning("Failed to limit parallel requests: %s", error)
        is_free = True
    try:
        yield is_free
    finally:
        with suppress(redis.RedisError):  # it may have expired
            if is_free:
                lock.release()


@cache
def redis_client() -> redis.Redis:
    at_once = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, retry=at_once)


class TooManyTries(Exception):
    """The message is for the person who signs in."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(
            f"Too many wrong passwords within 15 minutes. Wait {self.minutes}, or "
            "sign in by link (see below)."
        )

    @property
    def minutes(self) -> str:
        minutes = math.ceil(self.seconds / 60)
        return f"{minutes} minute{'s' * (minutes != 1)}"


def count_try(*, username: str, address: str, device: str) -> None:
    """`device` is the name of one that is known, or "".

    Raises:
        TooManyTries: this one is over the limit, and is not to be looked at.
    """
    for key, most in _limits(username, address, device).items():
        counted = count(key, within_seconds=WINDOW_SECONDS)
        if counted is not None and counted.number > most:
            raise TooManyTries(counted.seconds_left)


def reset_tries(*, username: str, address: str, device: str) -> None:
    """After a successful attempt: forget it and earlier ones from here."""
    from_here, *others = _limits(username, address, device)
    try:
        redis_client().delete(from_here)
        for key in others:
            redis_client().decr(key)
    except redis.RedisError as error:
        logger.warning("Failed to reset the count of sign-in attempts: %s", error)


def _limits(username: str, address: str, device: str) -> dict[str, int]:
    """Return each limited count with its limit; first who tries from where."""
    if device:
        return {_key("device", device): MAX_OF_DEVICE}
    name, place = _one_name(username), network_of(address)
    return {
        _key("pair", f"{place} {name}"): MAX_OF_PAIR,
        _key("name", name): MAX_OF_USERNAME,
        _key("address", place): MAX_OF_ADDRESS,
    }


def _key(kind: str, text: str) -> str:
    # Hashed for privacy.
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"cohort:sign-in:{kind}:{digest}"


def _one_name(username: str) -> str:
    """Return one name for all spellings that the form accepts."""
    return str(User.normalize_username(username.strip()[:LONGEST_NAME])).casefold()
