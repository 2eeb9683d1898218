"""A webhook is no way into the network of the server that sends it."""

import socket
from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.alerts.delivery import deliver_due
from dashboard.alerts.models import Channel, Delivery
from tests.dashboard.alerts.factories import make_delivery, serve_hook

INSIDE = (
    "https://127.0.0.1/x", "https://127.1/x", "https://2130706433/x",
    "https://0x7f000001/x", "https://0177.0.0.1/x", "https://0/x",
    "https://10.0.0.7/x", "https://192.168.1.1/x", "https://169.254.169.254/latest",
    "https://168.63.129.16/x", "https://[::1]/x", "https://[fd00:ec2::254]/x",
    "https://[::ffff:10.0.0.7]/x", "https://[2002:7f00:1::]/x",
    "http://hooks.example.org/x", "https://hooks.example.org:8443/x",
    "https://name:secret@hooks.example.org/x", "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x", "//hooks.example.org/x", "hooks.example.org",
    "https://hooks.example.org/x\r\nX: y", "https://①②⑦.⓪.⓪.①/", "https://[::1/x",
)  # fmt: skip


def test_a_private_address_is_refused_by_the_form(alice_client, team):
    for url in INSIDE:
        given = {"kind": "webhook", "address": url, "events": ["alert.fired"]}
        answer = alice_client.post("/alpha/settings/notifications/", given)
        assert answer.status_code == 400, url

    assert not Channel.objects.exists()


def deliver_to(team: Team, url: str) -> Delivery:
    channel = Channel.objects.create(team=team, kind="webhook", address=url)
    delivery = make_delivery(channel)
    deliver_due()
    delivery.refresh_from_db()
    return delivery


@pytest.mark.parametrize("ips", [["10.0.0.7"], ["8.8.8.8", "169.254.169.254"]])
def test_a_name_that_resolves_to_a_private_address_is_refused(team, monkeypatch, ips):
    monkeypatch.setattr(socket, "getaddrinfo", Resolver(ips))

    delivery = deliver_to(team, "https://hooks.example.org/x")

    assert delivery.state == "failed"
    assert ips[-1] in delivery.result


class Resolver:
    """Says what a name is; numbers it leaves to no one."""

    def __init__(self, ips: list[str], port: int = 443) -> None:
        self.ips = ips
        self.port = port
        self.num_asked = 0

    def __call__(self, host: str, port: int, **how: Any) -> list[Any]:
        if how.get("flags") == socket.AI_NUMERICHOST:
            raise socket.gaierror("a name")
        self.num_asked += 1
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (ip, self.port)) for ip in self.ips]


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    team, settings, monkeypatch
):
    with serve_hook() as hook:
        port = int(hook.host.split(":")[1])
        resolver = Resolver(["127.0.0.1"], port)
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        settings.WEBHOOK_HOSTS = f"hooks.example.org:{port}"

        delivery = deliver_to(team, f"http://hooks.example.org:{port}/x")

    assert delivery.state == "sent"
    assert resolver.num_asked == 1
    assert hook.seen[0][1]["Host"] == f"hooks.example.org:{port}"


def test_no_redirect_is_followed(team, settings):
    with serve_hook() as hook, serve_hook() as inside:
        settings.WEBHOOK_HOSTS = f"{hook.host},{inside.host}"
        hook.status, hook.location = 307, inside.url

        delivery = deliver_to(team, hook.url)

    assert "307" in delivery.result
    assert inside.seen == []


def test_an_allowed_host_is_allowed_only_on_its_port(team, settings):
    with serve_hook() as hook, serve_hook() as other:
        settings.WEBHOOK_HOSTS = hook.host

        assert deliver_to(team, hook.url).state == "sent"
        refused = deliver_to(team, other.url)

    assert "COHORT_WEBHOOK_HOSTS" in refused.result
    assert other.seen == []
