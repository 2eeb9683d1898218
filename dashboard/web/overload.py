"""503 when this process is at capacity, with Retry-After.

That is when no database connection came free in time, or the database is down, or no
slot for a child.
"""

from __future__ import annotations

import sys
import time

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import loader
from django.views.defaults import server_error
from psycopg_pool import PoolTimeout

from dashboard.web.middleware import Middleware

RETRY_SECONDS = 5
NOTED_SECONDS = 30.0  # how long /readyz reports it
NO_CONNECTION = (
    "All database connections are in use, or the database does not respond. "
    "Nothing changed. Try again in a few seconds."
)
BUSY = (
    "All subprocesses of this server or of your team were busy for {seconds:g} s. "
    "Try again in a few seconds."
)

_no_connection_at: float | None = None


class Busy(Exception):
    """No slot came free in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(BUSY.format(seconds=seconds))


def overload_of(error: BaseException | None) -> str:
    """Explain what is at capacity, as a sentence; "" for other errors."""
    global _no_connection_at
    if isinstance(error, Busy):
        return str(error)
    if isinstance(error, OperationalError) and isinstance(error.__cause__, PoolTimeout):
        _no_connection_at = time.monotonic()
        return NO_CONNECTION
    return ""


def seconds_without_connection() -> float | None:
    """Since a request last got no database connection; None: not lately."""
    if _no_connection_at is None:
        return None
    age = time.monotonic() - _no_connection_at
    return age if age < NOTED_SECONDS else None


class OverloadMiddleware(Middleware):
    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(
        self, _: HttpRequest, error: Exception
    ) -> HttpResponseBase | None:
        """Handle an error of a view."""
        sentence = overload_of(error)
        return answer(sentence) if sentence else None


def handle_server_error(request: HttpRequest) -> HttpResponseBase:
    """Handle errors outside of a view, such as reading the session."""
    sentence = overload_of(sys.exception())
    return answer(sentence) if sentence else server_error(request)


def answer(sentence: str) -> HttpResponse:
    # Without a request, whose teams would need a query.
    page = loader.get_template("503.html").render({"sentence": sentence})
    return HttpResponse(page, status=503, headers={"Retry-After": str(RETRY_SECONDS)})
