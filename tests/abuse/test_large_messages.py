"""Sockets have no compression and a small maximum message size."""

from pathlib import Path

import pytest
from django.conf import settings
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dashboard.local.supervisor import web
from tests.dashboard.runs.stories import queue_run

ROOT = Path(__file__).parent.parent.parent
TOO_BIG = 1009  # RFC 6455, 7.4.1


def send_and_read_all(page: ClientConnection, text: str) -> None:
    page.send(text)
    while True:
        page.recv(timeout=20)


@pytest.mark.django_db(transaction=True)
def test_a_message_of_more_than_16_kib_ends_its_socket(live_app, alice_client, team):
    name = settings.SESSION_COOKIE_NAME
    cookie = f"{name}={alice_client.cookies[name].value}"
    address = live_app.replace("http:", "ws:") + f"/ws/runs/{queue_run(team).id}/"

    with connect(
        address, origin=live_app, additional_headers={"Cookie": cookie}, proxy=None
    ) as page:
        assert page.protocol.extensions == []
        page.recv(timeout=20)
        with pytest.raises(ConnectionClosed) as closed:
            send_and_read_all(page, "a" * 16_385)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == TOO_BIG


def test_every_web_process_limits_requests_and_messages(tmp_path):
    local = " ".join(web(data=tmp_path, port=1).arguments)
    image = (ROOT / "docker/web.Dockerfile").read_text().replace('", "', " ")
    unit = (ROOT / "docker/systemd/cohort-web.service").read_text()

    for start in (local, image, unit):
        assert "--ws-per-message-deflate false --ws-max-size 16384" in start
        assert "--http dashboard.web.connections:LimitedRequests" in start
