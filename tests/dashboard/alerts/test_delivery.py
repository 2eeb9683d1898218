"""Alerts on their way: to real servers on loopback, again when they fail."""

import hashlib
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team
from dashboard.alerts import delivery as delivering
from dashboard.alerts import messages, services
from dashboard.alerts.delivery import MAX_ATTEMPTS, deliver, deliver_due, purge_alerts
from dashboard.alerts.messages import sign, signing_secret
from dashboard.alerts.models import Alert, Channel, Delivery
from dashboard.alerts.services import add_channel, change_secret, send_test
from dashboard.help.pages import FOLDER
from dashboard.project.errors import UserError
from dashboard.project.mail import read_mail_url
from tests.dashboard.alerts.factories import (
    Hook,
    MailBox,
    make_alert,
    make_delivery,
    serve_hook,
    serve_mail,
)
from tests.dashboard.completions.factories import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def hook(settings) -> Iterator[Hook]:
    """On loopback, which the administrator allows."""
    with serve_hook() as hook:
        settings.WEBHOOK_HOSTS = hook.host
        yield hook


@pytest.fixture
def mail_box(settings) -> Iterator[MailBox]:
    with serve_mail() as box:
        settings.MAIL_IS_SET_UP = True
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
        yield box


@pytest.fixture
def alert(team) -> Alert:
    return make_alert(make_run(team, state="paused", finished_at=None))


@pytest.fixture
def channel(team, hook) -> Channel:
    return Channel.objects.create(team=team, kind="webhook", address=hook.url)


def later(delivery: Delivery) -> None:
    """Its pause is over."""
    Delivery.objects.filter(pk=delivery.pk).update(not_before=timezone.now())


def test_a_webhook_gets_signed_json(alert, channel, hook):
    delivery = make_delivery(channel, alert)

    assert (deliver_due(), deliver_due()) == (1, 0)  # it is sent once

    delivery.refresh_from_db()
    assert (delivery.state, delivery.result) == ("sent", "returned 204")
    [(path, headers, body)] = hook.seen
    assert path == "/hook/T0K3N?key=S3CRET"
    signed = headers["Cohort-Timestamp"].encode() + b"." + body
    key = signing_secret(channel).encode()
    expected = hmac.new(key, signed, hashlib.sha256).hexdigest()
    assert headers["Cohort-Signature"] == f"v1={expected}"
    assert abs(time.time() - int(headers["Cohort-Timestamp"])) < 60
    answer = json.loads(body)
    assert answer["id"] == headers["Cohort-Delivery"] == str(delivery.pk)
    assert (answer["event"], answer["team"]) == ("alert.fired", "alpha")
    assert answer["alert"]["condition"] == "kl/mean above 1"
    assert answer["alert"]["run"]["url"] == (
        f"http://localhost:8000/alpha/runs/{alert.run_id}/"
    )


def test_a_failure_is_tried_again_later_under_the_same_id(alert, channel, hook):
    delivery = make_delivery(channel, alert)
    hook.status = 503

    deliver_due()
    assert deliver_due() == 0  # not yet

    delivery.refresh_from_db()
    assert delivery.state == "pending"
    assert "503" in delivery.result
    assert delivery.not_before > timezone.now() + timedelta(seconds=10)
    later(delivery)
    hook.status = 200
    deliver_due()
    delivery.refresh_from_db()
    assert (delivery.state, delivery.num_attempts) == ("sent", 2)
    assert len({headers["Cohort-Delivery"] for _, headers, _ in hook.seen}) == 1


def test_after_the_last_attempt_it_has_failed(alert, channel, hook):
    delivery = make_delivery(channel, alert)
    hook.status = 500

    for _ in range(MAX_ATTEMPTS + 2):
        later(delivery)
        deliver_due()

    delivery.refresh_from_db()
    assert (delivery.state, delivery.num_attempts) == ("failed", MAX_ATTEMPTS)
    assert len(hook.seen) == MAX_ATTEMPTS


def test_a_redirect_is_not_followed(alert, team, settings):
    with serve_hook() as first, serve_hook() as second:
        settings.WEBHOOK_HOSTS = f"{first.host},{second.host}"
        first.status, first.location = 307, second.url
        to = Channel.objects.create(team=team, kind="webhook", address=first.url)
        delivery = make_delivery(to, alert)

        deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "pending"
    assert "307" in delivery.result
    assert (len(first.seen), second.seen) == (1, [])


def resolving(monkeypatch: pytest.MonkeyPatch, *ips: str) -> list[str]:
    """The first lookup gets the first address, later ones the rest."""
    requested: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        if not host.endswith(".example.org"):
            return real(host, port, *rest, **more)
        if more.get("flags"):
            raise socket.gaierror  # it is no number
        requested.append(host)
        ip = ips[min(len(requested), len(ips)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return requested


def test_a_name_that_leads_into_our_network_gets_nothing(alert, team, monkeypatch):
    # It is looked at when it is sent to: it was public when it was put down.
    resolving(monkeypatch, "10.0.0.7")
    url = "https://hooks.example.org/T0K3N"
    to = Channel.objects.create(team=team, kind="webhook", address=url)
    delivery = make_delivery(to, alert)

    deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "pending"
    assert "hooks.example.org is 10.0.0.7" in delivery.result
    assert "T0K3N" not in delivery.result


def test_the_checked_address_is_the_one_connected_to(
    alert, team, settings, monkeypatch
):
    with serve_hook() as hook:
        port = hook.host.partition(":")[2]
        settings.WEBHOOK_HOSTS = f"hooks.example.org:{port}"
        # A second look-up gives another address.
        requested = resolving(monkeypatch, "127.0.0.1", "192.0.2.1")
        url = f"http://hooks.example.org:{port}/hook"
        to = Channel.objects.create(team=team, kind="webhook", address=url)

        make_delivery(to, alert)
        deliver_due()

    assert requested == ["hooks.example.org"]
    assert hook.seen[0][1]["Host"] == f"hooks.example.org:{port}"


def test_a_worker_that_dies_while_sending_leaves_it_to_the_next(
    alert, channel, hook, monkeypatch
):
    delivery = make_delivery(channel, alert)

    def die(_: object) -> tuple[bool, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(delivering, "_send", die)
        with pytest.raises(KeyboardInterrupt):
            deliver_due()
    assert deliver_due() == 0  # its lease has not run out
    later(delivery)

    assert deliver_due() == 1

    delivery.refresh_from_db()
    assert (delivery.state, delivery.num_attempts) == ("sent", 2)


def test_a_server_that_never_answers_is_given_up(alert, channel, hook, monkeypatch):
    monkeypatch.setattr(messages, "TIMEOUT_SECONDS", 0.3)
    given_up = threading.Event()
    hook.wait = lambda: given_up.wait(30)
    delivery = make_delivery(channel, alert)

    deliver_due()

    given_up.set()
    delivery.refresh_from_db()
    assert (delivery.state, delivery.num_attempts) == ("pending", 1)


def test_a_slow_receiver_delays_no_other(team, settings):
    with serve_hook() as slow, serve_hook() as quick:
        settings.WEBHOOK_HOSTS = f"{slow.host},{quick.host}"
        received = threading.Event()
        slow.wait = lambda: received.wait(30)
        quick.wait = received.set
        for hook in (slow, quick):
            to = Channel.objects.create(team=team, kind="webhook", address=hook.url)
            make_delivery(to)

        assert deliver_due() == 2

    assert {each.state for each in Delivery.objects.all()} == {"sent"}


def test_a_switched_off_channel_gets_nothing_that_waited(alert, channel, hook):
    delivery = make_delivery(channel, alert)
    Channel.objects.update(is_enabled=False)

    deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "failed"
    assert hook.seen == []


def test_a_test_is_sent_once(alice, channel, hook):
    hook.status = 404

    delivery = send_test(channel=channel, user=alice)
    deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "failed"
    assert "404" in delivery.result
    assert json.loads(hook.seen[0][2])["event"] == "test"


def test_a_new_secret_signs_from_then_on(alice, channel):
    before = signing_secret(channel)

    change_secret(channel=channel, user=alice)

    channel.refresh_from_db()
    assert signing_secret(channel) != before
    assert signing_secret(channel).startswith("whsec_")


def test_mail_tells_of_the_alert_with_its_links(team, alert, mail_box):
    to = Channel.objects.create(team=team, kind="email", address="lab@example.org")
    delivery = make_delivery(to, alert)

    deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "sent"
    [mail] = mail_box.mails
    assert "calm-otter-1, step 7" in mail
    assert "lab@example.org" in mail
    assert f"Message-ID: <{delivery.pk}@cohort>" in mail
    assert f"http://localhost:8000/alpha/alerts/{alert.pk}/" in mail.replace(
        "=\r\n", ""
    )


def test_without_a_mail_server_a_mail_says_so(team, alert):
    to = Channel.objects.create(team=team, kind="email", address="lab@example.org")
    delivery = make_delivery(to, alert)

    deliver_due()

    delivery.refresh_from_db()
    assert "COHORT_EMAIL_URL" in delivery.result


def test_an_unreachable_mail_server_is_retried(team, alert, mail_box, settings):
    settings.EMAIL_PORT = 9  # no one listens there
    to = Channel.objects.create(team=team, kind="email", address="lab@example.org")
    delivery = make_delivery(to, alert)

    deliver_due()

    delivery.refresh_from_db()
    assert delivery.state == "pending"
    assert "refused the connection" in delivery.result


def test_no_log_and_no_audit_row_holds_a_webhooks_path(
    alice, team, alert, hook, caplog
):
    caplog.set_level(logging.DEBUG)
    channel = add_channel(
        team=team,
        user=alice,
        kind="webhook",
        address=hook.url,
        events=["alert.fired"],
    )
    hook.status = 500
    delivery = make_delivery(channel, alert)

    deliver_due()

    delivery.refresh_from_db()
    rows = str(list(AuditEntry.objects.values_list("verb", "detail")))
    message = f"{caplog.text} {delivery.result} {rows} {channel} {delivery}"
    assert "T0K3N" not in message
    assert "S3CRET" not in message
    assert signing_secret(channel) not in message


def test_old_deliveries_are_deleted_and_pending_ones_kept(channel):
    old = timezone.now() - timedelta(days=91)
    for state in ("sent", "pending"):
        delivery = make_delivery(channel)
        Delivery.objects.filter(pk=delivery.pk).update(state=state, created_at=old)

    purge_alerts()

    assert Delivery.objects.get().state == "pending"


def test_a_mail_servers_address_says_how_it_is_reached():
    for url, port, tls in (
        ("smtp://me:p%40ss@mail.example.org", 587, (True, False)),
        ("smtps://mail.example.org", 465, (False, True)),
        ("smtp+plain://localhost:2525", 2525, (False, False)),
    ):
        server = read_mail_url(url)

        assert server is not None
        assert (server.port, (server.starts_tls, server.is_tls)) == (port, tls)
        assert server.password in ("", "p@ss")
        assert "p@ss" not in repr(server)


def test_an_address_of_no_mail_server_is_refused_without_repeating_it():
    for url in ("host:p4ss", "http://me:p4ss@x", "smtp://me:p4ss@h:x"):
        with pytest.raises(ValueError, match="COHORT_EMAIL_URL") as refused:
            read_mail_url(url)

        assert "p4ss" not in str(refused.value)


def test_no_team_waits_behind_all_of_another(team, hook):
    other = Team.objects.create(name="Other", slug="other")
    for _ in range(delivering.PER_CALL + 5):
        make_delivery(
            Channel.objects.create(team=team, kind="webhook", address=hook.url)
        )
    foreign = Channel.objects.create(team=other, kind="webhook", address=hook.url)
    behind = make_delivery(foreign)

    deliver_due()

    behind.refresh_from_db()
    assert behind.state == "sent"


@pytest.mark.django_db(transaction=True)
def test_only_one_worker_delivers_at_a_time(channel, hook):
    delivery = make_delivery(channel)
    with psycopg.connect(**connection.get_connection_params()) as other:
        # Of the transaction: a session's is let go of only some time after its end.
        lock = "SELECT pg_advisory_xact_lock(%s)"
        other.cursor().execute(lock, [delivering.ADVISORY_LOCK])
        deliver()
        assert hook.seen == []

    deliver()

    delivery.refresh_from_db()
    assert delivery.state == "sent"


def test_a_failing_message_delays_no_other(team, channel, hook, mail_box):
    address = f"a@{'ä' * 60}.org"  # its ASCII form is too long for a name
    bad = Channel.objects.create(team=team, kind="email", address=address)
    deliveries = [make_delivery(bad), make_delivery(channel)]

    assert deliver_due() == 2

    for one in deliveries:
        one.refresh_from_db()
    assert [one.state for one in deliveries] == ["failed", "sent"]
    assert "worker" in deliveries[0].result


def test_a_team_sends_few_tests_an_hour(channel, alice, monkeypatch):
    monkeypatch.setattr(services, "MAX_TESTS", 2)
    for _ in range(2):
        send_test(channel=channel, user=alice)

    with pytest.raises(UserError) as refused:
        send_test(channel=channel, user=alice)
    assert refused.value.code == "alerts.too_many_tests"
    monkeypatch.setattr(services, "TESTS_WINDOW", timedelta(0))
    send_test(channel=channel, user=alice)

    assert channel.deliveries.count() == 3


def test_the_signature_in_the_help_is_correct():
    signed = sign("whsec_example", 1_700_000_000, b'{"event": "test"}')

    assert signed in (FOLDER / "webhooks.md").read_text(encoding="utf-8")
