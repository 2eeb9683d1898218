"""Channels receive the end of a run, and that a run waits for a decision."""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.alerts import delivery as giving_up
from dashboard.alerts import delivery as outbox
from dashboard.alerts.delivery import MAX_ATTEMPTS, deliver_due
from dashboard.alerts.messages import write_mail
from dashboard.alerts.models import Channel, Delivery, Event, MutedRun
from dashboard.alerts.services import choose_events, resend, switch_channel
from dashboard.runs.control import cancel_run, request_stop
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import END_TIME, transition
from tests.dashboard.alerts.factories import Hook, make_delivery, serve_hook
from tests.dashboard.completions.factories import make_run


@pytest.fixture
def hook(settings) -> Iterator[Hook]:
    with serve_hook() as hook:
        settings.WEBHOOK_HOSTS = hook.host
        yield hook


@pytest.fixture
def channel(team, hook) -> Channel:
    return Channel.objects.create(
        team=team, kind="webhook", address=hook.url, events=Event.values
    )


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_run(
        shared_team,
        state="running",
        finished_at=None,
        lease_until=timezone.now() + timedelta(hours=1),
        last_step=12,
        summary={"last": {"reward/mean": 0.75}, "best": {}},
    )


def move(run: Run, target: RunState, **fields: object) -> None:
    ended = {} if target == RunState.PAUSED else {"finished_at": END_TIME}
    moved = transition(
        run.pk, sources=[RunState.RUNNING], target=target, **ended | fields
    )
    assert moved


@pytest.mark.parametrize(
    ("target", "event", "fields"),
    [
        (RunState.FINISHED, "run.finished", {}),
        (RunState.FAILED, "run.failed", {"fail_reason": "Out of memory."}),
        (RunState.STOPPED, "run.stopped", {}),
        (RunState.PAUSED, "run.paused", {"pause_reason": "A judge is away."}),
    ],
)
def test_a_webhook_receives_the_end_of_a_run(run, channel, hook, target, event, fields):
    move(run, target, **fields)

    assert deliver_due() == 1

    [(_, _, body)] = hook.seen
    message = json.loads(body)
    at = message["run"].pop("at")
    assert at.startswith(f"{timezone.now():%Y-%m-%d}")
    assert message == {
        "id": str(Delivery.objects.get().pk),
        "team": "alpha",
        "event": event,
        "alert": None,
        "channel": None,
        "run": {
            "id": run.pk,
            "name": run.name,
            "url": f"http://localhost:8000/alpha/runs/{run.pk}/",
            "state": target.value,
            "step": 12,
            "num_steps": run.num_steps,
            "reward_mean": 0.75,
            "reason": "".join(fields.values()),
        },
    }


def test_a_message_has_the_run_at_the_time_of_the_event(run, channel, hook):
    move(run, RunState.PAUSED, pause_reason="A judge is away.")
    transition(
        run.pk, sources=[RunState.PAUSED], target=RunState.QUEUED, pause_reason=""
    )

    deliver_due()

    run_data = json.loads(hook.seen[0][2])["run"]
    assert (run_data["state"], run_data["reason"]) == ("paused", "A judge is away.")


def test_a_requested_stop_is_sent_once(run, channel, alice):
    request_stop(run=run, user=alice)  # stopping: it has not stopped yet
    assert not Delivery.objects.exists()

    cancel_run(run=run, user=alice)
    cancel_run(run=run, user=alice)

    [delivery] = Delivery.objects.all()
    assert delivery.event == "run.stopped"
    assert "alice" in delivery.content["reason"]


def test_unsubscribed_events_are_not_sent(run, channel):
    Channel.objects.update(events=["alert.fired", "run.failed"])

    move(run, RunState.FINISHED)

    assert not Delivery.objects.exists()


def test_a_muted_run_and_a_channel_that_is_off_are_silent(team, alice, run, channel):
    Channel.objects.create(
        team=team, kind="email", address="a@b.org", events=Event.values
    )
    switch_channel(channel=channel, user=alice, is_enabled=False)
    MutedRun.objects.create(run=run, until=timezone.now() + timedelta(hours=1))

    move(run, RunState.FINISHED)
    assert not Delivery.objects.exists()

    MutedRun.objects.all().delete()
    other = make_run(team, state="paused", finished_at=None)
    request_stop(run=other, user=None)
    assert [one.channel.kind for one in Delivery.objects.all()] == ["email"]


def test_other_teams_and_rolled_back_events_get_no_message(charlie, run, channel):
    Channel.objects.create(
        team=charlie.teams.get(), kind="email", address="a@b.org", events=Event.values
    )
    with transaction.atomic():
        move(run, RunState.FAILED)
        transaction.set_rollback(True)
    assert not Delivery.objects.exists()

    move(run, RunState.FAILED)

    assert [each.channel for each in Delivery.objects.all()] == [channel]


def test_a_mail_describes_the_run(team, run):
    channel = Channel.objects.create(
        team=team, kind="email", address="a@b.org", events=Event.values
    )
    Run.objects.filter(pk=run.pk).update(name="calm\notter")
    move(run, RunState.FAILED, fail_reason="Out of memory.")

    subject, text = write_mail(channel.deliveries.get())

    assert "calm otter" in subject
    for fragment in ("failed", "step 12"):
        assert fragment in subject
        assert fragment in text
    assert "0.75" in text
    assert "Out of memory." in text
    assert f"http://localhost:8000/alpha/runs/{run.pk}/" in text


def test_a_failing_channel_is_switched_off_and_the_others_are_notified(
    team, channel, hook, monkeypatch
):
    monkeypatch.setattr(giving_up, "MAX_FAILED", 2)
    other = Channel.objects.create(team=team, kind="email", address="a@b.org")
    hook.status = 500
    for _ in range(2):
        request_stop(run=make_run(team, state="paused", finished_at=None), user=None)
        Delivery.objects.update(num_attempts=MAX_ATTEMPTS - 1)
        deliver_due()

    channel.refresh_from_db()
    assert not channel.is_enabled
    assert "2 messages" in channel.gave_up
    entry = AuditEntry.objects.get(verb="alert_channel.switched_off")
    assert (entry.actor, entry.detail["to"]) == (None, f"http://{hook.host}/…")
    [notice] = other.deliveries.all()
    assert (notice.event, notice.content["why"]) == ("channel.off", channel.gave_up)
    subject, text = write_mail(notice)
    assert subject.endswith(f"http://{hook.host}/…")
    assert "T0K3N" not in subject + text


def test_a_success_resets_the_count_of_failures(team, channel, hook, monkeypatch):
    monkeypatch.setattr(giving_up, "MAX_FAILED", 2)
    for status in (500, 200, 500):
        hook.status = status
        request_stop(run=make_run(team, state="paused", finished_at=None), user=None)
        Delivery.objects.update(num_attempts=MAX_ATTEMPTS - 1)
        deliver_due()

    channel.refresh_from_db()
    assert (channel.is_enabled, channel.num_failed) == (True, 1)


def test_tests_that_fail_switch_nothing_off(channel, hook, monkeypatch):
    monkeypatch.setattr(giving_up, "MAX_FAILED", 1)
    hook.status = 500
    make_delivery(channel)

    deliver_due()

    channel.refresh_from_db()
    assert (channel.is_enabled, channel.num_failed) == (True, 0)


def test_switching_on_resets_the_count_of_failures(channel, alice):
    Channel.objects.update(is_enabled=False, num_failed=5, gave_up="5 messages …")

    switch_channel(channel=channel, user=alice, is_enabled=True)

    channel.refresh_from_db()
    assert (channel.is_enabled, channel.num_failed, channel.gave_up) == (True, 0, "")


def test_a_failed_message_is_sent_again_under_the_same_id(channel, hook, alice):
    delivery = make_delivery(channel)
    hook.status = 500
    deliver_due()
    hook.status = 204

    assert resend(delivery=delivery, user=alice)
    assert not resend(delivery=delivery, user=alice)  # it waits
    deliver_due()

    delivery.refresh_from_db()
    assert (delivery.state, delivery.num_attempts) == ("sent", 1)
    assert len({headers["Cohort-Delivery"] for _, headers, _ in hook.seen}) == 1
    assert AuditEntry.objects.filter(verb="alert_channel.sent_again").count() == 1


def test_a_message_is_sent_again_only_to_an_enabled_channel(channel, alice_client):
    delivery = make_delivery(channel)
    Delivery.objects.update(state="failed")
    again = f"/alpha/settings/notifications/{delivery.pk}/again"
    Channel.objects.update(is_enabled=False)

    refused = alice_client.post(again, follow=True).text
    Channel.objects.update(is_enabled=True)
    taken = alice_client.post(again, follow=True).text

    assert 'data-delivery-state="failed"' in refused
    assert 'data-delivery-state="pending"' in taken


def test_the_events_of_a_channel_can_be_changed(channel, alice, alice_client):
    page = f"/alpha/settings/notifications/{channel.pk}/events"

    alice_client.post(page, {"events": ["run.failed", "run.paused"]})
    alice_client.post(page)
    alice_client.post(page, {"events": ["run.exploded"]})

    channel.refresh_from_db()
    assert channel.events == ["run.failed", "run.paused"]
    entry = AuditEntry.objects.get(verb="alert_channel.events_chosen")
    assert entry.detail["events"] == ["run.failed", "run.paused"]


def test_a_new_channel_requires_events(team, alice_client):
    given = {"kind": "webhook", "address": "https://hooks.example.org/x"}

    without = alice_client.post("/alpha/settings/notifications/", given)
    alice_client.post(
        "/alpha/settings/notifications/", given | {"events": ["run.failed"]}
    )

    assert without.status_code == 400
    assert Channel.objects.get().events == ["run.failed"]


def test_a_disabled_channel_is_shown_with_its_reason(channel, alice_client):
    Channel.objects.update(is_enabled=False, gave_up="5 messages in a row …")

    text = alice_client.get("/alpha/settings/notifications/").text

    assert "5 messages in a row …" in text


def test_the_log_is_read_by_state_and_by_page(channel, alice_client):
    for _ in range(51):
        make_delivery(channel)
    Delivery.objects.filter(pk=Delivery.objects.first().pk).update(state="failed")  # type: ignore[union-attr]  # there are some

    def rows(query: str) -> int:
        text = alice_client.get(f"/alpha/settings/notifications/{query}").text
        return text.count("data-delivery-state=")

    assert (rows(""), rows("?page=2")) == (50, 1)
    assert (rows("?state=failed"), rows("?state=sent")) == (1, 0)
    assert (
        "1–50 of 51 messages" in alice_client.get("/alpha/settings/notifications/").text
    )


def test_a_channel_gets_a_limited_number_of_run_messages(team, channel, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_AN_HOUR", 2)
    for _ in range(3):
        request_stop(run=make_run(team, state="paused", finished_at=None), user=None)

    states = Delivery.objects.order_by("pk").values_list("state", flat=True)
    assert sorted(states) == ["failed", "pending", "pending"]


def test_events_of_another_teams_channel_cannot_be_changed(
    channel, charlie, charlie_client
):
    choose_events(channel=channel, user=charlie, events=["run.failed"])
    page = f"/other/settings/notifications/{channel.pk}/events"

    assert charlie_client.post(page, {"events": ["run.paused"]}).status_code == 404
