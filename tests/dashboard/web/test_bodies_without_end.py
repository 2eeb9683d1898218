"""No one fills the disk by sending and sending."""

import asyncio
import threading
from typing import Any

from asgiref.testing import ApplicationCommunicator

from dashboard.asgi import application
from dashboard.datasets.limits import PART_BYTES
from dashboard.web.connections import Pages
from dashboard.web.middleware import MAX_BODY_BYTES, BodyLimit

PART = b"x" * 1_000


def post(app: Any, headers: dict[bytes, bytes]) -> ApplicationCommunicator:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sign-in/",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers.items()],
    }
    return ApplicationCommunicator(app, scope)


async def test_a_body_with_too_large_a_length_is_not_read():
    for length in [b"999999999999", b"9" * 5_000, b"-1", b"x"]:
        request = post(application, {b"content-length": length})

        answer = await request.receive_output(timeout=5)

        assert answer["status"] == 413, length


async def test_a_body_that_does_not_say_how_long_it_is_is_cut_off():
    request = post(BodyLimit(Pages(), max_bytes=10_000), {})

    for _ in range(11):
        await request.send_input(
            {"type": "http.request", "body": PART, "more_body": True}
        )
    await request.wait(timeout=5)

    assert request.output_queue.empty()


async def test_requests_whose_bodies_never_end_start_no_thread():
    pages, before = Pages(), threading.active_count()
    asked = [post(pages, {b"content-length": b"10"}) for _ in range(20)]
    for request in asked:
        await request.send_input(
            {"type": "http.request", "body": b"", "more_body": True}
        )
        await request.send_input({"type": "http.disconnect"})
        await request.wait(timeout=5)

    assert threading.active_count() <= before


async def test_one_thread_serves_one_request_after_another():
    pages, before = Pages(), threading.active_count()
    for _ in range(5):
        request = post(pages, {b"content-type": b"text/plain"})
        await request.send_input({"type": "http.request", "body": b""})
        assert (await request.receive_output(timeout=20))["status"] == 403  # no token
        await request.receive_output(timeout=20)
        await request.wait(timeout=20)
        await asyncio.sleep(0.1)  # until it is free

    assert threading.active_count() <= before + 1


def test_a_part_of_a_file_is_let_through():
    assert PART_BYTES + 2**16 < MAX_BODY_BYTES
