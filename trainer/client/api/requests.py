"""Requests that are repeated where that helps, and lists that come in pages."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from trainer.client.api.records import Listing
from trainer.client.http import Server, Unreachable

T = TypeVar("T")
logger = logging.getLogger("cohort")
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0  # a server that asks for more is given up


@dataclass(frozen=True, slots=True)
class Patience:
    """Waits as long as the server asks, else twice as long each time."""

    retries: int = 4

    def ask(self, do: Callable[[], T]) -> T:
        """`do` may be done twice, so a POST names an Idempotency-Key."""
        for attempt in range(self.retries):
            try:
                return do()
            except Unreachable as error:
                wait = seconds_to_wait(error, attempt)
                if wait > LONGEST_WAIT:
                    raise
                logger.warning("%s Trying again in %.3g s.", ended(str(error)), wait)
                time.sleep(wait)
        return do()


def seconds_to_wait(error: Unreachable, attempt: int) -> float:
    if error.after_seconds is not None:
        return error.after_seconds
    return FIRST_WAIT * 2.0**attempt * random.uniform(0.75, 1.25)


def ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", ")", "!", "?")) else f"{sentence}."


PAGE = 200  # the most that the server gives at once


class Asker:
    """Raises Unreachable, after several tries, and Refused."""

    def __init__(self, server: Server, patience: Patience) -> None:
        self.server = server
        self.patience = patience

    def get(self, path: str, **query: str | int | None) -> Any:
        asked = f"{path}{query_of(**query)}"
        return self.patience.ask(lambda: self.server.get(asked))

    def post(self, path: str, tree: Any = None, *, key: str = "") -> Any:
        """Done once, however often it is sent."""
        key = key or str(uuid.uuid4())
        return self.patience.ask(lambda: self.server.post(path, tree, key=key))

    def listing(
        self,
        path: str,
        read: Callable[[Any], T],
        *,
        limit: int | None,
        **query: str | int | None,
    ) -> Listing[T]:
        """The first `limit`; None: all."""
        found: list[T] = []
        total, cursor = None, ""
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self.get(path, cursor=cursor, limit=size, **query)
            found += map(read, page["items"])
            total = page.get("total") if total is None else total
            cursor = page["next_cursor"]
            if not cursor:
                total = len(found) if total is None else total
                break
        return Listing(found, total)


def query_of(**query: str | int | None) -> str:
    """Without what is None or empty.

    >>> query_of(step=0, cursor="", limit=None)
    '?step=0'
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
