"""Each request as the log knows it, and a line for those that are worth one."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from dashboard.both_worlds import BothWorlds
from dashboard.budgets import SPENT_BY, STREAMS
from dashboard.logs.facts import begin_request, end_request, team_of, user_of
from dashboard.meters.web import count_request
from dashboard.reporting.spans import name_span, span
from dashboard.slots import release_connection

logger = logging.getLogger(__name__)
SLOW_SECONDS = 1.0
QUIET = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestMiddleware(BothWorlds):
    """The outermost: its time is all that Django takes."""

    def __call__(
        self, request: HttpRequest
    ) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._answer(request)
        token, began = begin_request(request), time.perf_counter()
        try:
            with span("request") as one:
                response = self.get_response(request)
                assert isinstance(response, HttpResponseBase)
                if hasattr(request, "scope"):
                    # Who reads it slowly keeps none of the few meanwhile.
                    release_connection()
                note(request, response, time.perf_counter() - began, one)
            return response
        finally:
            end_request(token)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        token, began = begin_request(request), time.perf_counter()
        try:
            with span("request") as one:
                response = self.get_response(request)
                assert not isinstance(response, HttpResponseBase)
                answer = await response
                await sync_to_async(release_connection)()
                note(request, answer, time.perf_counter() - began, one)
            return answer
        finally:
            end_request(token)


def note(
    request: HttpRequest, response: HttpResponseBase, seconds: float, one: Any
) -> None:
    """Acts, slow answers and faults; never the address, which may hold a token."""
    match = request.resolver_match
    route = match.view_name if match else _unrouted(request)
    count_request(route, request.method, response.status_code, seconds)
    name_span(one, route, status=response.status_code)
    if (scope := getattr(request, "scope", None)) is not None:
        scope[STREAMS] = response.streaming
        if hasattr(request, "_cached_user") or hasattr(request, "api_access"):
            is_answered = response.status_code < 400
            scope[SPENT_BY] = _spent_by(request, is_answered=is_answered)
    is_slow = seconds >= SLOW_SECONDS
    if request.method in QUIET and not is_slow and response.status_code < 500:
        return
    logger.log(
        logging.WARNING if is_slow else logging.INFO,
        "%s %s answered %d in %.3f s",
        request.method,
        route,
        response.status_code,
        seconds,
    )


def _spent_by(request: HttpRequest, *, is_answered: bool) -> tuple[str, str]:
    """The person, and the team once it is known that it is hers."""
    user, team = user_of(request), team_of(request)
    if user is None:
        return "", ""
    kind = _kind_of(request)
    is_teams = team and is_answered and kind != "ingest"
    return f"{kind}:{user}", f"team:{team}" if is_teams else ""


def _kind_of(request: HttpRequest) -> str:
    """Of the budget: a person's pages, her scripts, trainers that report runs."""
    access = getattr(request, "api_access", None)
    if access is None:
        return "person"
    return "ingest" if access.token.scopes == ["ingest"] else "program"


def _unrouted(request: HttpRequest) -> str:
    """Of what is answered before a page is looked for, or has none."""
    return "static" if request.path.startswith(settings.STATIC_URL) else "none"
