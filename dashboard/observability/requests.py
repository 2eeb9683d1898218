"""The log of requests: request ids that tasks carry on, and a line for some of them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

from celery.signals import before_task_publish, task_postrun, task_prerun
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from dashboard.observability.logging import (
    begin,
    begin_request,
    bound,
    current_request_id,
    end_request,
    team_of,
    user_of,
)
from dashboard.observability.metrics import count_request
from dashboard.observability.tracing import (
    begin_task_span,
    carry_span,
    end_task_span,
    name_span,
    span,
)
from dashboard.project.database import release_connection
from dashboard.web.budgets import SPENT_BY, STREAMS
from dashboard.web.middleware import Middleware

logger = logging.getLogger(__name__)
SLOW_SECONDS = 1.0
QUIET = frozenset({"GET", "HEAD", "OPTIONS"})
# Each of them shows that the request came through a proxy.
FORWARDING = frozenset(
    {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"}
)
OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADER = b"x-request-id"
TASK_HEADER = "cohort_request_id"  # of a message: a task reads it from its own request
WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
STARTS = ("http.response.start", "websocket.accept")


class RequestMiddleware(Middleware):
    """The outermost middleware: its time covers all of Django."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        token, began = begin_request(request), time.perf_counter()
        try:
            with span("request") as request_span:
                response = self.get_response(request)
                if hasattr(request, "scope"):
                    # A slow reader keeps no database connection.
                    release_connection()
                log_request(
                    request, response, time.perf_counter() - began, request_span
                )
            return response
        finally:
            end_request(token)


def log_request(
    request: HttpRequest, response: HttpResponseBase, seconds: float, one: Any
) -> None:
    """Logs changes, slow responses and errors;

    never the address, which may contain a token.
    """
    match = request.resolver_match
    route = (
        match.view_name
        if match
        else ("static" if request.path.startswith(settings.STATIC_URL) else "none")
    )
    count_request(route, request.method, response.status_code, seconds)
    name_span(one, route, status=response.status_code)
    scope = getattr(request, "scope", {})
    scope[STREAMS] = response.streaming
    if hasattr(request, "_cached_user") or hasattr(request, "api_access"):
        scope[SPENT_BY] = _spent_by(request, is_answered=response.status_code < 400)
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
    """Return the person, and the team once it is known that it is hers."""
    user, team = user_of(request), team_of(request)
    if user is None:
        return "", ""
    kind = _kind_of(request)
    is_teams = team and is_answered and kind != "ingest"
    return f"{kind}:{user}", f"team:{team}" if is_teams else ""


def _kind_of(request: HttpRequest) -> str:
    """Return the kind of budget: a person's pages, her scripts, trainers that report
    runs.
    """
    access = getattr(request, "api_access", None)
    if access is None:
        return "person"
    return "ingest" if access.token.scopes == ["ingest"] else "program"


def is_of_this_machine(address: str, host: str, headers: Iterable[str]) -> bool:
    """Return whether a program on this machine sent the request, by a host name that
    only such programs use.

    A proxy on this machine that hides its visitors passes on their Host header. A
    visitor of such a proxy could call us "localhost": set a token there, which is then
    required from all (operations/views.py).
    """
    name, _, port = host.rpartition(":")
    if (name if port.isdigit() else host) not in OWN_NAMES:
        return False
    if not FORWARDING.isdisjoint(headers):
        return False
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


class RequestIds:
    """Reads X-Request-ID from trusted senders, else generates one; returns it in the
    response.

    Trusted are programs on this machine, and with `trusts_proxy` all senders, since a
    proxy then always sets the header itself.
    """

    def __init__(self, app: Any, *, trusts_proxy: bool) -> None:
        self.app = app
        self.trusts_proxy = trusts_proxy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_id = self._given(scope) or uuid4().hex

        async def send_with_id(message: Any) -> None:
            if message["type"] in STARTS:
                values = (HEADER, request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), values]}
            await send(message)

        with bound(request_id=request_id):
            await self.app(scope, receive, send_with_id)

    def _given(self, scope: Any) -> str | None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        request_id = headers.get("x-request-id", "")
        if not WELL_FORMED.fullmatch(request_id):
            return None
        is_own = is_of_this_machine(
            (scope.get("client") or ("", 0))[0], headers.get("host", ""), headers
        )
        return request_id if self.trusts_proxy or is_own else None


def carry_request(headers: dict[str, Any] | None = None, **_: Any) -> None:
    request_id = current_request_id()
    if headers is not None and request_id:
        headers[TASK_HEADER] = request_id


def begin_task(task: Any, **_: Any) -> None:
    begin(task=task.name, request_id=task.request.get(TASK_HEADER))


def end_task(**_: Any) -> None:
    begin()


def carry_requests() -> None:
    """Install it in this process; more than once does no harm."""
    before_task_publish.connect(carry_request)
    before_task_publish.connect(carry_span)
    task_prerun.connect(begin_task)
    task_prerun.connect(begin_task_span)
    task_postrun.connect(end_task_span)  # which reads what the next forgets
    task_postrun.connect(end_task)
