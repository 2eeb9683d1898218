import re
from typing import Any

import pytest

from dashboard.observability.logging import current_request_id
from dashboard.observability.requests import RequestIds

GIVEN = "given-by-the-proxy-1"
STARTS = {"http": "http.response.start", "websocket": "websocket.accept"}


async def ask(
    headers: dict[str, str],
    *,
    client: str = "127.0.0.1",
    trusts_proxy: bool = False,
    kind: str = "http",
) -> tuple[str | None, str]:
    """What was bound within, and what the answer says."""
    within: list[str | None] = []
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        within.append(current_request_id())
        await send({"type": STARTS[kind], "headers": [(b"a", b"b")]})

    async def receive() -> Any:
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(key.encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": kind, "client": (client, 1), "headers": named}
    await RequestIds(app, trusts_proxy=trusts_proxy)(scope, receive, send)
    return within[0], dict(sent[0]["headers"])[b"x-request-id"].decode()


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_request_id_is_generated_and_returned(kind):
    within, reported = await ask({"host": "cohort.example.org"}, kind=kind)

    assert within == reported
    assert re.fullmatch(r"[0-9a-f]{32}", reported)
    assert current_request_id() is None


async def test_local_programs_may_set_the_request_id():
    own = {"host": "localhost:8000", "x-request-id": GIVEN}

    assert await ask(own) == (GIVEN, GIVEN)


async def test_request_ids_of_strangers_are_ignored():
    for more in (
        {"client": "192.0.2.7"},
        {"client": ""},
        {"host": "cohort.example.org"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-request-id": "with a space and more"},
        {"x-request-id": "short"},
        {"x-request-id": "x" * 65},
    ):
        headers = {"host": "localhost:8000", "x-request-id": GIVEN, **more}
        client = headers.pop("client", "127.0.0.1")

        _, reported = await ask(headers, client=client)

        assert reported != headers["x-request-id"], more


async def test_a_proxys_is_taken_where_it_sets_it_itself():
    headers = {"host": "cohort.example.org", "x-request-id": GIVEN}

    assert await ask(headers, client="192.0.2.7", trusts_proxy=True) == (GIVEN, GIVEN)
