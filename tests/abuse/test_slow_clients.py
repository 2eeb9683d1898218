"""Slow uploads do not block the web process."""

import socket
import time
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

HEAD = b"POST /sign-in/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
BEGINNINGS = (
    HEAD[:30],
    HEAD,
    HEAD + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n",
)


def test_three_hundred_slow_uploads_do_not_block_pages(live_app):
    at = urlsplit(live_app)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                socket.create_connection((at.hostname or "", at.port or 0), 10)
            )
            for _ in range(300)
        ]
        for number, client in enumerate(clients):
            client.sendall(BEGINNINGS[number % 3])
        time.sleep(0.5)
        for client in clients[2::3]:
            client.sendall(b"x")

        for path in ("/healthz", "/sign-in/"):
            with urllib.request.urlopen(live_app + path, timeout=10) as page:  # noqa: S310 - loopback
                assert page.status == 200
