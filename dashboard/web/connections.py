"""Requests on their way to Django: limits of head and time, and the thread of each.

uvicorn waits forever for the end of a head, and buffers all of it.
"""

from __future__ import annotations

import resource
from asyncio import Transport
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from time import thread_time
from typing import Any, ClassVar, NoReturn

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

from dashboard.web.budgets import CPU_SECONDS, network_of

# For a request's line and headers, and a body's trailers. nginx allows 32 KiB.
MAX_HEAD_BYTES = 64 * 1024
# As Apache's mod_reqtimeout has them: a head has 30 s, a body as many and another for
# each 500 bytes that came.
MAX_WAIT_SECONDS = 30.0
LEAST_BYTES_PER_SECOND = 500
MAX_IDLE_SECONDS = 60.0  # without a byte, however many came before
CHECK_SECONDS = 5.0
MAX_IDLE_THREADS = 32  # that wait for requests
MAX_CONNECTIONS = 512  # of an address; also of a proxy's
MAX_FILES = 65_536

TOO_LONG = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"The request headers exceed {MAX_HEAD_BYTES:,} bytes.",
)
HAS_BODY = (HTTPStatus.BAD_REQUEST, "A WebSocket handshake must not have a body.")
UNREADABLE = (HTTPStatus.BAD_REQUEST, "Invalid WebSocket handshake.")


class LimitedRequests(HttpToolsProtocol):
    """A connection to uvicorn that ends where a request does not.

    `uvicorn --http dashboard.web.connections:LimitedRequests`
    """

    transport: Transport
    check_seconds = CHECK_SECONDS
    max_wait_seconds = MAX_WAIT_SECONDS
    max_idle_seconds = MAX_IDLE_SECONDS
    num_connections: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._network = network_of(self.client[0]) if self.client else ""
        self.num_connections[self._network] += 1
        if self._network and self.num_connections[self._network] > MAX_CONNECTIONS:
            transport.close()
        self._running: RequestResponseCycle | None = None
        self._refusal: tuple[HTTPStatus, str] | None = None
        self._check = self.loop.call_later(self.check_seconds, self._check_time)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._check.cancel()
        self._uncount()
        if self._running is not None:
            self._running.disconnected = True  # uvicorn tells only the newest request
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _uncount(self) -> None:
        self.num_connections[self._network] -= 1
        if self.num_connections[self._network] <= 0:
            del self.num_connections[self._network]

    def _await_head(self) -> None:
        self._is_head = True
        self._seconds_waited = self._seconds_idle = 0.0
        self._body_bytes = 0
        self._unread_bytes = 0  # of which the parser has made nothing yet

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        self._seconds_idle = 0.0
        super().data_received(data)
        if self._unread_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._is_head:
                self._refuse(*TOO_LONG)
            else:
                self.transport.close()

    def on_headers_complete(self) -> None:
        lengths = (len(name) + len(value) for name, value in self.headers)
        if len(self.url) + sum(lengths) > MAX_HEAD_BYTES:
            self._stop(TOO_LONG)
        if self.parser.should_upgrade() and self._should_upgrade():
            headers = dict(self.headers)
            if (
                headers.get(b"content-length", b"0") != b"0"
                or b"transfer-encoding" in headers
            ):
                self._stop(HAS_BODY)
        super().on_headers_complete()
        self._is_head = False
        self._seconds_waited = 0.0
        self._unread_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._await_head()

    def _stop(self, refusal: tuple[HTTPStatus, str]) -> NoReturn:
        """Ends the parser, which calls `send_400_response`."""
        self._refusal = refusal
        raise ValueError(refusal[1])

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, for what its parser refuses: and so for what is refused here."""
        self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, msg)))

    def handle_websocket_upgrade(self) -> None:
        self._check.cancel()
        self._uncount()
        super().handle_websocket_upgrade()
        socket: Any = self.transport.get_protocol()
        if not socket.handshake_initiated:
            # uvicorn leaves unsent what `websockets` answers to a bad handshake.
            response = b"".join(socket.conn.data_to_send())
            if response:
                self.transport.write(response)
                self.transport.close()
            else:
                self._refuse(*UNREADABLE)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        body = f"{message}\n".encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _check_time(self) -> None:
        """Time is counted by timer ticks, so a busy process does not time out its
        clients.
        """
        if self.transport.is_closing():
            return
        self._check = self.loop.call_later(self.check_seconds, self._check_time)
        # Whether the client waits for a response, reads one, or may not send.
        cycle: RequestResponseCycle | None = self.cycle  # none yet at first
        has_all = cycle is not None and not cycle.more_body
        is_answering = has_all and not self.cycle.response_complete
        is_sending = self.transport.get_write_buffer_size() > 0
        if is_answering or is_sending or self.flow.read_paused:
            self._seconds_waited = self._seconds_idle = 0.0
            return
        self._seconds_waited += self.check_seconds
        self._seconds_idle += self.check_seconds
        granted = self._body_bytes / LEAST_BYTES_PER_SECOND
        is_slow = self._seconds_waited >= self.max_wait_seconds + granted
        if is_slow or self._seconds_idle >= self.max_idle_seconds:
            self.transport.close()


def raise_file_limit() -> None:
    """Connections are files, of which many systems allow 1,024 unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if 0 <= soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class _Thread(ThreadPoolExecutor):
    """A thread, which a request whose body never ends does not start."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.is_started = False
        self.cpu_seconds = 0.0  # of all that it has run

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.is_started = True
        return super().submit(self._run, function, *args, **kwargs)

    def _run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        began = thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.cpu_seconds += thread_time() - began


class Pages(ASGIHandler):
    """Django, whose middleware and view share a thread that serves one request after
    another.

    Django's own handler sends each method of its middleware from the event loop to the
    thread and back, and starts a thread for each request: a third of a page's time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._idle: list[_Thread] = []

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        thread = self._idle.pop() if self._idle else _Thread()
        scope[CPU_SECONDS] = lambda: thread.cpu_seconds
        try:
            async with ThreadSensitiveContext(executor=thread):
                await super().__call__(scope, receive, send)
        finally:
            if thread.is_started:
                # Queued behind work that still runs for a client that disconnected.
                thread.submit(self._keep, thread)

    def _keep(self, thread: _Thread) -> None:
        if len(self._idle) < MAX_IDLE_THREADS:
            self._idle.append(thread)
        else:
            thread.shutdown(wait=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self._answer)(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        close_old_connections()
        return self.get_response(request)
