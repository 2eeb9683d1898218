"""A page whose script is older or newer than the server gets an error and no data."""

import asyncio
import json
import re

import pytest
from django.conf import settings
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dashboard.live.messages import OTHER_PROTOCOL, PROTOCOL
from dashboard.live.pubsub import ACCESS, _subscriptions
from dashboard.project.environment import ROOT
from tests.dashboard.live.watching import refusal, watch

pytestmark = pytest.mark.django_db(transaction=True)
OTHERS = [PROTOCOL - 1, PROTOCOL + 1]
SENT = {"type": "protocol", "protocol": PROTOCOL}


def test_script_and_server_of_one_version_speak_the_same():
    script = (ROOT / "static/js/live/stream.js").read_text()

    assert re.findall(r"^export const PROTOCOL = (\d+);$", script, re.M) == [
        str(PROTOCOL)
    ]


async def test_a_page_of_the_same_protocol_is_served(alice, run):
    for query in ("", f"?after=0&protocol={PROTOCOL}", "?protocol="):
        async with watch(run.id, alice, query) as viewer:
            assert (await viewer.next_frame())["type"] == "snapshot", query


@pytest.mark.parametrize("protocol", OTHERS)
async def test_another_version_gets_the_servers_and_is_closed(alice, run, protocol):
    async with watch(run.id, alice, f"?after=0&protocol={protocol}") as viewer:
        reported = await viewer.next()
        code = await viewer.until_closed()

    assert (reported, code) == (SENT, OTHER_PROTOCOL)
    subscription = _subscriptions.get(ACCESS)
    assert subscription is None or not subscription._listeners


async def test_non_members_do_not_learn_the_version(alice, charlie, run):
    assert await refusal(run.id, charlie, f"?protocol={PROTOCOL + 1}") == 4404
    assert await refusal(run.id, alice, "?protocol=new") == 4400


def test_polling_pages_get_the_same_response(alice_client, run):
    address = f"/alpha/runs/{run.id}/stream.json"

    for protocol in OTHERS:
        answer = alice_client.get(address, {"protocol": protocol})
        assert (answer.status_code, answer.json()) == (409, SENT), protocol
    assert alice_client.get(address, {"protocol": PROTOCOL}).status_code == 200
    assert alice_client.get(address, {"protocol": "new"}).status_code == 400


def test_the_real_socket_sends_it_before_closing(live_app, alice_client, run):
    name = settings.SESSION_COOKIE_NAME
    cookie = f"{name}={alice_client.cookies[name].value}"
    address = live_app.replace("http:", "ws:") + f"/ws/runs/{run.id}/"

    async def receive(protocol: int) -> tuple[list[str], int | None]:
        query = f"?after=0&protocol={protocol}"
        received: list[str] = []
        async with connect(
            address + query,
            origin=live_app,  # type: ignore[arg-type]
            additional_headers={"Cookie": cookie},
        ) as socket:
            try:
                while "snapshot" not in "".join(received):
                    received.append(str(await asyncio.wait_for(socket.recv(), 10)))
            except ConnectionClosed as closed:
                return received, closed.rcvd.code if closed.rcvd else None
        return received, None

    reported, code = asyncio.run(receive(PROTOCOL + 1))
    served, none = asyncio.run(receive(PROTOCOL))

    assert ([json.loads(text) for text in reported], code) == ([SENT], 4426)
    assert (len(served), none) == (1, None)
