"""Requests that are repeated where that helps, and lists that come in pages."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from trainer.client.api.patience import Patience
from trainer.client.api.records import Listing
from trainer.client.http import Server

T = TypeVar("T")
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
