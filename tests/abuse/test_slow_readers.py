"""Stalled downloads do not block database connections."""

import socket
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

from django.conf import settings

from dashboard.datasets.row import Row
from tests.dashboard.completions.factories import store_dataset

NUM_READERS = 24  # more than the web process has connections to its database


def test_stalled_downloads_do_not_block_pages(live_app, alice_client, team):
    rows = (Row(prompt=f"{i} " + "x" * 20_000, answer="1") for i in range(1_200))
    version = store_dataset(team, rows, name="large")
    at = urlsplit(live_app)
    cookie = alice_client.cookies[settings.SESSION_COOKIE_NAME].value
    head = (
        f"GET /{team.slug}/datasets/{version.dataset_id}/download HTTP/1.1\r\n"
        f"Host: {at.netloc}\r\nCookie: {settings.SESSION_COOKIE_NAME}={cookie}\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(NUM_READERS):
            reader = stack.enter_context(
                socket.create_connection((at.hostname or "", at.port or 0), 10)
            )
            reader.sendall(head.encode())
            assert b"200 OK" in reader.recv(200)

        with urllib.request.urlopen(f"{live_app}/readyz", timeout=20) as page:  # noqa: S310 - loopback
            assert page.status == 200
