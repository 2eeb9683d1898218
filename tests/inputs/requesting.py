"""Which parameters a page reads, found out by asking it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from urllib.parse import quote_plus

from django.core.signals import got_request_exception
from django.db import transaction
from django.http import QueryDict
from django.test import Client
from django.utils.datastructures import MultiValueDict

Ask = Callable[[str], Any]
# What each name is first given, so that what is read only then shows too.
FIRST_VALUE = "1"
READERS = ("__getitem__", "_getlist")


@contextmanager
def read_names() -> Iterator[dict[str, None]]:
    """The names that are asked of any QueryDict meanwhile, in order."""
    found: dict[str, None] = {}

    def watched(original: Any) -> Any:
        def read(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, QueryDict) and isinstance(key, str):
                found[key] = None
            return original(self, key, *args, **kwargs)

        return read

    kept = {name: getattr(MultiValueDict, name) for name in READERS}
    for name, original in kept.items():
        setattr(MultiValueDict, name, watched(original))
    QueryDict.__contains__ = watched(dict.__contains__)  # type: ignore[method-assign]
    try:
        yield found
    finally:
        for name, original in kept.items():
            setattr(MultiValueDict, name, original)
        del QueryDict.__contains__


def names_read(ask: Ask, rounds: int = 3) -> list[str]:
    """Of the page that `ask` asks with a query string: what it reads, by and by."""
    names: dict[str, None] = {}
    for _ in range(rounds):
        query = "&".join(f"{quote_plus(name)}={FIRST_VALUE}" for name in names)
        with read_names() as found:
            ask(query)
        if found.keys() <= names.keys():
            break
        names |= found
    return list(names)


class Failures(logging.Handler):
    """What a person on call would be told of: errors logged, exceptions unanswered."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("django.security"):  # refused as suspicious
            self.found.append(record.getMessage()[:300])

    def note(self, **_: Any) -> None:
        self.found.append("an exception that nothing answered")


@contextmanager
def failures() -> Iterator[list[str]]:
    handler = Failures()
    logging.getLogger().addHandler(handler)
    got_request_exception.connect(handler.note)
    try:
        yield handler.found
    finally:
        got_request_exception.disconnect(handler.note)
        logging.getLogger().removeHandler(handler)


def response_of(client: Client, method: str, address: str, query: str) -> Any:
    """The answer; what it changed is undone."""
    client.raise_request_exception = False
    cookies = deepcopy(client.cookies)  # some answers sign out
    with transaction.atomic():
        if method == "get":
            answer = client.get(f"{address}?{query}")
        else:
            form = "application/x-www-form-urlencoded"
            answer = client.post(address, query, content_type=form)
        if answer.streaming:
            for _ in answer.streaming_content:
                pass
        transaction.set_rollback(True)
    client.cookies = cookies
    return answer
