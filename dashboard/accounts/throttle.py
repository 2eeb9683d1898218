"""How often somebody may try to sign in.

Counted in Redis before a password is looked at, so that many guesses at the same time
are as many guesses: from a browser that this user has signed in from before, that
browser's own; from any other, those of the username, of the address, and of both
together. So whoever guesses keeps the owner out of no browser that she uses. Without
Redis nothing is counted: a server that lost it must still let its people in.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from dashboard.accounts.models import User

logger = logging.getLogger(__name__)
WINDOW_SECONDS = 15 * 60
MAX_OF_DEVICE = 10
MAX_OF_PAIR = 10  # a username from an address
MAX_OF_USERNAME = 30  # from anywhere
MAX_OF_ADDRESS = 50  # an office of many people may share one
LONGEST_NAME = 200  # whatever follows, it is nobody's


class TooManyTries(Exception):
    """The text is for whoever tries."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        super().__init__(
            "Too many wrong passwords were given within 15 minutes. Wait "
            f"{self.minutes}, or sign in by a link, see below."
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
    with _redis() as client:
        for key, most in _limits(username, address, device).items():
            count: Any = client.incr(key)
            seconds: Any = client.ttl(key)
            if seconds < 0:
                seconds = WINDOW_SECONDS
                client.expire(key, seconds)
            if count > most:
                raise TooManyTries(max(1, seconds))


def forgive(*, username: str, address: str, device: str) -> None:
    """The try was right: it counts no more, nor do those from here before."""
    from_here, *others = _limits(username, address, device)
    with _redis() as client:
        client.delete(from_here)
        for key in others:
            client.decr(key)


def _limits(username: str, address: str, device: str) -> dict[str, int]:
    """What counts, with the most of it; first who tries from where."""
    if device:
        return {_key("device", device): MAX_OF_DEVICE}
    name, place = _one_name(username), network_of(address)
    return {
        _key("pair", f"{place} {name}"): MAX_OF_PAIR,
        _key("name", name): MAX_OF_USERNAME,
        _key("address", place): MAX_OF_ADDRESS,
    }


def _key(kind: str, text: str) -> str:
    # Hashed, since it is nobody's business.
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"cohort:sign-in:{kind}:{digest}"


def _one_name(username: str) -> str:
    """The same for all spellings that the form takes for one."""
    name = username.strip()[:LONGEST_NAME]
    return str(User.normalize_username(name)).casefold()


def network_of(address: str) -> str:
    """What one household has: of IPv6 that is 2^64 addresses.

    >>> network_of("2001:db8:0:7::1")
    "2001:db8:0:7::/64"
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    network = IPv6Network((int(ip), 64), strict=False)
    return str(ip.ipv4_mapped or network)


@contextmanager
def _redis() -> Iterator[redis.Redis]:
    at_once = Retry(NoBackoff(), 0)
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=2, retry=at_once
        ) as client:
            yield client
    except redis.RedisError as error:
        logger.warning("Tries to sign in are not counted: %s", error)
