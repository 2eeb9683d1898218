"""Retention of a team: preview, save, delete."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.operations.models import Quota, Retention, Use
from dashboard.operations.retention import retain
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_an_admin_previews_a_retention_and_saves_it(page, team):
    now = timezone.now()
    Use.objects.create(team=team, parts={"runs": 3 * 10**9}, measured_at=now)
    Quota.objects.create(team=team, max_bytes=5 * 10**9, max_runs=4)
    make_run(team, "old-run", trashed_at=now - timedelta(days=9))
    done = make_run(team, "done-run")
    make_blocks(make_group(done).run)
    Run.objects.filter(pk=done.pk).update(
        created_at=now - timedelta(days=99), finished_at=now - timedelta(days=98)
    )
    page.goto("/alpha/settings")

    page.get_by_role("link", name="Storage").click()
    page.get_by_label("Days in the trash").fill("7")
    page.get_by_label("Days to keep completions").fill("90")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_role("link", name="old-run")).to_be_visible()
    expect(page.get_by_text("48 B of text")).to_be_visible()
    expect(page.get_by_role("link", name="done-run")).to_be_visible()
    assert findings_in_each_view(page) == []

    page.get_by_role("button", name="Save").click()

    expect(page.locator("#messages .notice-success")).to_be_visible()
    retention = Retention.objects.get()
    assert (retention.trash_days, retention.completion_days) == (7, 90)

    retain()
    page.goto(f"/alpha/runs/{done.pk}/completions/")

    expect(page.locator(".empty-title")).to_be_visible()
    assert findings_in_each_view(page) == []
