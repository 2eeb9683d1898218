"""A web server on loopback that serves files with faults."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Handler = BaseHTTPRequestHandler
Page = Callable[[Handler], None]


@dataclass
class Site:
    """Pages by path, with or without a query, and the requests received."""

    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    host: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"http://{self.host}{path}"

    def ranges(self) -> list[str]:
        return [headers.get("Range", "") for _, headers in self.requests]

    def answer(self, handler: Handler) -> None:
        self.requests.append((handler.path, dict(handler.headers.items())))
        plain = handler.path.partition("?")[0]
        page = self.pages.get(handler.path) or self.pages.get(plain) or status(404)
        with suppress(OSError):  # the client may have disconnected
            page(handler)
        handler.close_connection = True


def send(handler: Handler, code: int, body: bytes, **headers: Any) -> None:
    names = {name.replace("_", "-"): str(value) for name, value in headers.items()}
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **names}.items():
        if value != "None":
            handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def page(body: bytes, code: int = 200, **headers: Any) -> Page:
    return lambda handler: send(handler, code, body, **headers)


def status(code: int, body: bytes = b"the secret of the house", **more: Any) -> Page:
    return page(body, code, **more)


def redirect(to: str, code: int = 302) -> Page:
    return page(b"", code, Location=to)


def file(
    body: bytes, *, breaks_at: tuple[int, ...] = (), etag: str = '"one"', **headers: Any
) -> Page:
    """A file with ETag and ranges, whose connections break after these bytes."""
    breaks = list(breaks_at)

    def serve(handler: Handler) -> None:
        start = 0
        requested = handler.headers.get("Range", "")
        is_same = handler.headers.get("If-Range", etag) == etag
        if requested and is_same:
            start = int(requested.removeprefix("bytes=").rstrip("-"))
        if start >= len(body) and requested:
            send(handler, 416, b"", Content_Range=f"bytes */{len(body)}")
            return
        rest = body[start:]
        here = rest[: breaks.pop(0)] if breaks else rest
        data = {"Content_Length": len(rest), "ETag": etag, **headers}
        if start:
            data["Content_Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        send(handler, 206 if start else 200, here, **data)

    return serve


def drip(site: Site, body: bytes, *, seconds: float, **headers: Any) -> Page:
    """A byte at a time."""

    def serve(handler: Handler) -> None:
        send(handler, 200, b"", **{"Content_Length": len(body), **headers})
        for byte in body:
            handler.wfile.write(bytes([byte]))
            if site.over.wait(seconds):
                return

    return serve


def endless(handler: Handler) -> None:
    send(handler, 200, b"", Content_Length=None)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        handler.wfile.write(b'{"question": "1?", "answer": 1}\n' * 2_000)


@contextmanager
def web_site(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    site = Site()

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
