"""What travels between a page and the server. README.md describes the protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict

from django.http import QueryDict

from dashboard.project.database import read_whole

# Close codes. The first three are answered before the socket is accepted, so a
# browser sees a refused handshake (1006) and requests the reason over HTTP.
NOT_SIGNED_IN = 4401
NOT_FOUND = 4404  # another team's things are not found either
TOO_MANY = 4429  # this person's pages have all sockets that one may; HTTP answers
ACCESS_ENDED = 4403  # signed out, or no longer in the team
BAD_MESSAGE = 4400
OTHER_PROTOCOL = 4426  # sent in a frame before, with the server's number

# What pages and servers agree on, in static/js/live/stream.js too. It rises with a
# change that a page of before would misread: what such a page passes over, a field or a
# kind of frame more, changes nothing.
PROTOCOL = 2


@dataclass(frozen=True, slots=True)
class Position:
    """The events that a page already has: all up to `seq` of history `attempt`.

    `attempt` None: the page does not know its history.
    """

    seq: int = 0
    attempt: int | None = None


class Frame(TypedDict):
    """A message to a page: all that came after `after`, up to `seq`."""

    type: str  # snapshot: forget what you have; batch: add this
    after: int
    seq: int
    attempt: int
    run: dict[str, Any]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    curves: dict[str, Any]  # of a snapshot: metric -> steps and values


def parse_position(query: QueryDict) -> Position:
    """`after` and `attempt` of an address; ValueError when they are not numbers."""
    attempt = query.get("attempt")
    return Position(
        seq=_count("after", query.get("after") or "0"),
        attempt=_count("attempt", attempt) if attempt else None,
    )


def parse_protocol(query: QueryDict) -> int:
    """`protocol` of the query; the newest if it is missing."""
    return _count("protocol", query.get("protocol") or str(PROTOCOL))


def other_protocol() -> dict[str, Any]:
    """Build the response to a page of another protocol. This frame is of every
    protocol.
    """
    return {"type": "protocol", "protocol": PROTOCOL}


def parse_request(text: str) -> Position:
    """{"type": "after", "seq": 12, "attempt": 1}: the page requests what it missed."""
    message = json.loads(text)
    if not isinstance(message, dict) or message.get("type") != "after":
        raise ValueError('Send only messages {"type": "after", "seq", "attempt"}.')
    attempt = message.get("attempt")
    return Position(
        seq=_count("seq", message.get("seq")),
        attempt=None if attempt is None else _count("attempt", attempt),
    )


def _count(name: str, value: object) -> int:
    text = str(value)
    number = read_whole(text)
    if number is None:
        raise ValueError(f"{name} must be an integer of at least 0; got {text[:40]!r}.")
    return number
