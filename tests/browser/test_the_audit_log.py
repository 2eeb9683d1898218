"""The audit log of a team, and its notification channels."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.accounts.request_context import RequestContext, acting_in
from dashboard.accounts.services import record
from dashboard.alerts.delivery import describe_run
from dashboard.alerts.models import Channel, Delivery, Event
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.alerts.factories import make_delivery
from tests.dashboard.completions.factories import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_log_is_filtered_and_downloaded(page, team, alice, bob):
    run = make_run(team, "calm-otter-with-a-rather-long-name-1")
    with acting_in(
        RequestContext(address="2001:db8::7f", agent="Firefox 128 on Linux")
    ):
        record(team, alice, "run.launched", run, name=run.name, group=None)
        record(team, bob, "run.described", run, notes="word " * 60)
        record(team, alice, "run.deleted", make_run(team), name="swift-heron-2")
    with acting_in(RequestContext(program="training.reap")):
        record(team, None, "run.lost", run, outcome="its worker went silent", attempt=3)
    page.goto("/alpha/runs/")
    page.locator(".topbar-team > summary").click()
    page.get_by_role("link", name="Team settings").click()
    page.get_by_role("link", name="Audit log").click()
    expect(page.locator("#entries-count")).to_contain_text("4 of 4 entries")
    assert findings_in_each_view(page) == []

    page.get_by_label("Who").select_option(label="Cohort")
    page.get_by_role("button", name="Apply").press("Enter")

    expect(page.locator("#entries-count")).to_contain_text("1 of 4 entries")
    expect(page.get_by_role("table")).to_contain_text("training.reap")
    with page.expect_download() as download:
        page.get_by_role("link", name="JSONL").click()
    assert download.value.suggested_filename == "audit-log-alpha.jsonl"
    page.get_by_role("link", name=run.name).click()
    expect(page).to_have_url(f"/alpha/runs/{run.pk}/")


def test_the_events_of_a_channel_are_changed(page, team):
    run = make_run(team, "calm-otter-1")
    url = "https://hooks.example.org/services/T0K3N"
    channel = Channel.objects.create(
        team=team, kind="webhook", address=url, events=Event.values
    )
    Channel.objects.create(
        team=team,
        kind="webhook",
        address="https://old.example.org/",
        is_enabled=False,
        gave_up="The last 5 messages failed.",
    )
    data = {"run": run, "event": "run.finished", "content": describe_run(run)}
    later = timezone.now() + timedelta(days=1)
    Delivery.objects.create(
        channel=channel,
        not_before=later,
        num_attempts=3,
        result="The receiver answered 503.",
        **data,
    )
    failed = make_delivery(channel)
    Delivery.objects.filter(pk=failed.pk).update(state="failed", num_attempts=1)
    page.goto("/alpha/settings/notifications/")
    expect(page.get_by_text("old.example.org").first).to_be_visible()
    assert findings_in_each_view(page) == []

    mine = page.get_by_role("group", name="https://hooks.example.org/…")
    mine.get_by_label("A run finishes").uncheck()
    mine.get_by_role("button", name="Save").click()

    expect(page.locator("#messages .notice-success")).to_be_visible()
    channel.refresh_from_db()
    assert "run.finished" not in channel.events
    page.get_by_role("button", name="Send again").click()
    expect(page.locator("#messages .notice")).to_be_visible()
    failed.refresh_from_db()
    assert failed.state != "failed"
