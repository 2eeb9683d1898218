"""A real HTTP server that answers as an endpoint does, faults and all."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Judging:
    """What the server was asked, and what it does.

    `faults` are taken first, one for each request; then `reply` gives the text.
    """

    reply: Callable[[dict[str, Any]], str] = lambda asked: "7"
    faults: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    tokens: int | None = 30
    usage: dict[str, Any] = field(default_factory=dict)  # beside the total
    finish_reason: str = "stop"
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_at_once: int = 0
    num_connections: int = 0
    url: str = ""
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["Content-Length"])
        asked = json.loads(handler.rfile.read(length))
        with self._lock:
            self.asked.append(asked)
            self.headers.append(dict(handler.headers.items()))
            self.paths.append(handler.path)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            fault = self.faults.pop(0) if self.faults else None
        try:
            if fault is not None:
                fault(handler)
            else:
                send(handler, 200, self.completion(self.reply(asked)))
        finally:
            with self._lock:
                self._now -= 1

    def completion(self, text: str | None) -> bytes:
        whole: dict[str, Any] = {
            "choices": [
                {
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": self.finish_reason,
                }
            ]
        }
        if self.tokens is not None:
            whole["usage"] = {"total_tokens": self.tokens} | self.usage
        return json.dumps(whole).encode()


def send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, body: bytes = b"", **headers: str) -> Any:
    return lambda handler: send(handler, code, body, **headers)


def text(reply: str) -> Any:
    """What is no fault, in its turn."""
    body = Judging().completion(reply)
    return lambda handler: send(handler, 200, body)


def slow(seconds: float) -> Any:
    def wait(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return wait


def dripping(seconds: float) -> Any:
    """A byte at a time, each in time for a socket's own limit."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        end = time.monotonic() + seconds
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while time.monotonic() < end:
                handler.wfile.write(b"x")
                time.sleep(0.02)
        except OSError:
            return

    return drip


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    try:
        send(handler, 200, b"x" * (3 * 2**20))
    except OSError:
        return


@contextmanager
def judge_server(tls: ssl.SSLContext | None = None) -> Iterator[Judging]:
    judging = Judging()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            judging.num_connections += 1

        def do_POST(self) -> None:
            judging.answer(self)

        do_GET = do_POST

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # the client has gone

        def log_message(self, *_: object) -> None:
            """No one reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        judging.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield judging
        finally:
            server.shutdown()
            thread.join()
