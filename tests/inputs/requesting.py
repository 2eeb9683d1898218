"""Find out which parameters a page reads, by requesting it."""

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

Request = Callable[[str], Any]
# First value of each name, since some are only read after others.
FIRST_VALUE = "1"
READERS = ("__getitem__", "_getlist")


@contextmanager
def read_names() -> Iterator[dict[str, None]]:
    """The names that are read from any QueryDict, in order."""
    found: dict[str, None] = {}

    def watched(original: Any) -> Any:
        def read(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self, QueryDict) and isinstance(key, str):
                found[key] = None
            return original(self, key, *args, **kwargs)

        return read

    originals = {name: getattr(MultiValueDict, name) for name in READERS}
    for name, original in originals.items():
        setattr(MultiValueDict, name, watched(original))
    QueryDict.__contains__ = watched(dict.__contains__)  # type: ignore[method-assign]
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(MultiValueDict, name, original)
        del QueryDict.__contains__


def names_read(request: Request, rounds: int = 3) -> list[str]:
    """Parameters that a page reads; `request` sends a query string to it."""
    names: dict[str, None] = {}
    for _ in range(rounds):
        query = "&".join(f"{quote_plus(name)}={FIRST_VALUE}" for name in names)
        with read_names() as found:
            request(query)
        if found.keys() <= names.keys():
            break
        names |= found
    return list(names)


class Failures(logging.Handler):
    """Logged errors and unhandled exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("django.security"):  # refused as suspicious
            self.found.append(record.getMessage()[:300])

    def note(self, **_: Any) -> None:
        self.found.append("an unhandled exception")


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
    """The response; its changes are rolled back."""
    client.raise_request_exception = False
    cookies = deepcopy(client.cookies)  # some responses sign out
    with transaction.atomic():
        if method == "get":
            response = client.get(f"{address}?{query}")
        else:
            form = "application/x-www-form-urlencoded"
            response = client.post(address, query, content_type=form)
        if response.streaming:
            for _ in response.streaming_content:
                pass
        transaction.set_rollback(True)
    client.cookies = cookies
    return response
