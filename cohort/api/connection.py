"""`Connection`: requests to a server, repeated where nothing came back."""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from cohort.api.records import Me, read
from cohort.http import (
    Progress,
    Refused,
    Unreachable,
    Value,
    find_server,
    query_of,
)

logger = logging.getLogger("cohort")
Answer = TypeVar("Answer")
CONFLICT = 409
PAGE = 200  # items, the server's maximum
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0  # a longer Retry-After raises Unreachable


class Connection:
    """Requests to the API of one team, by a token for it."""

    def __init__(self, url: str = "", token: str = "", *, retries: int = 4) -> None:
        self.server = find_server(url, token)
        self.retries = retries

    def __repr__(self) -> str:
        return f"<Client of {self.server.url}>"  # never the token

    @cached_property
    def me(self) -> Me:
        """The token's person, team and scopes."""
        return read(Me, self.get("/me"))

    @property
    def address(self) -> str:
        """URL of the team's pages."""
        return f"{self.server.url.rstrip('/')}/{self.me.team.slug}"

    def get(self, path: str, **query: Value) -> Any:
        return self.retry(lambda: self.server.get(path, **query))

    def post(self, path: str, tree: Any = None, *, key: str = "") -> Any:
        """Takes effect once despite retries; with `key`, also across processes."""
        key = key or str(uuid.uuid4())
        return self.retry(lambda: self.server.send_json("POST", path, tree, key=key))

    def act(self, path: str) -> None:
        """Post an action. Refused: it has no effect now."""
        answer = self.post(path)
        if not answer["done"]:
            raise Refused(CONFLICT, answer["detail"], answer)

    def patch(self, path: str, tree: Any) -> Any:
        return self.retry(lambda: self.server.send_json("PATCH", path, tree))

    def iterate(
        self, path: str, *, limit: int | None = None, **query: Value
    ) -> Iterator[Any]:
        """Yield the first `limit` items of a list (None: all), read page by page."""
        cursor: str | None = ""
        num_left = limit
        while cursor is not None and num_left != 0:
            size = PAGE if num_left is None else min(PAGE, num_left)
            page = self.get(path, cursor=cursor, limit=size, **query)
            items = page["items"][:num_left]
            yield from items
            cursor = page["next_cursor"]
            if num_left is not None:
                num_left -= len(items)

    def download(
        self,
        path: str,
        target: Path,
        *,
        overwrite: bool = False,
        on_progress: Progress | None = None,
        **query: Value,
    ) -> Path:
        """Download to a file, which appears only when it is complete."""
        if target.exists() and not (overwrite and target.is_file()):
            raise ValueError(
                f"{target} already exists. Choose another name, or overwrite it."
            )
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        url = f"{path}{query_of(**query)}"

        def write() -> None:
            with draft.open("wb") as file:
                for chunk in self.server.chunks(url):
                    file.write(chunk)
                    if on_progress:
                        on_progress(file.tell(), None)

        try:
            self.retry(write)  # from the start: the server creates it while sending
            draft.replace(target)
        except OSError as error:
            raise ValueError(f"Cannot write {target}: {error}.") from None
        finally:
            draft.unlink(missing_ok=True)
        return target

    def retry(
        self, do: Callable[[], Answer], *, for_seconds: float | None = None
    ) -> Answer:
        """Repeat after Retry-After, else with exponential backoff; `retries` times, or
        for `for_seconds`.

        `do` may run twice, so a POST needs an Idempotency-Key.
        """
        end, attempt = time.monotonic() + (for_seconds or 0.0), 0
        while True:
            try:
                return do()
            except Unreachable as error:
                seconds_left = end - time.monotonic()
                is_over = (
                    attempt >= self.retries if for_seconds is None else seconds_left < 0
                )
                wait = error.after_seconds
                if wait is None:
                    usual = min(FIRST_WAIT * 2.0**attempt, LONGEST_WAIT)
                    wait = usual * random.uniform(0.75, 1.25)
                elif wait > max(LONGEST_WAIT, seconds_left):
                    is_over = True
                if is_over:
                    raise
                logger.warning("%s; retrying in %.3g s", error, wait)
                time.sleep(wait)  # as the server asked, else longer each time
                attempt += 1

    def find_version(self, kind: str, reference: str | int) -> Any:
        """Find one of a "dataset" or "recipe": "sums" is the newest, "sums@2" is 2."""
        name, number = split_reference(str(reference).strip())
        path = f"/{kind}s/{self.find_named(kind, name)}/versions"
        for version in self.iterate(path, limit=1 if number is None else None):
            if number in (None, version["number"]):
                return version
        has = "versions" if number is None else f"version {number}"
        raise ValueError(f"The {kind} {name!r} has no {has}.")

    def find_named(self, kind: str, name: str) -> int:
        items = list(self.iterate(f"/{kind}s"))
        item = next((item for item in items if item["name"] == name), None)
        if item is None:
            names = ", ".join(repr(item["name"]) for item in items[:20]) or "none"
            raise ValueError(f"Unknown {kind} {name!r}. Available: {names}.")
        return int(item["id"])


def split_reference(text: str) -> tuple[str, int | None]:
    """
    >>> split_reference("sums@2"), split_reference("a@b")
    (('sums', 2), ('a@b', None))
    """
    name, at, number = text.rpartition("@")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    return (name, int(number)) if at and is_number else (text, None)
