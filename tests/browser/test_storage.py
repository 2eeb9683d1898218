"""What a team's trash costs is seen before it is deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.operations.models import Quota, Retention, Use
from dashboard.operations.retention import retain
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.samples.blocks import make_blocks
from tests.dashboard.samples.factories import make_group, make_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_an_admin_looks_at_what_goes_then_keeps_the_numbers(
    page: Page, team: Team
) -> None:
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
    page.get_by_label("Days of completions").fill("90")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_text("1 of 1 run in the trash")).to_be_visible()
    expect(page.get_by_role("link", name="old-run")).to_be_visible()
    expect(page.get_by_text("4 completions (48 B of text) of 1 run")).to_be_visible()
    expect(page.get_by_role("link", name="done-run")).to_be_visible()
    assert findings_in_each_view(page) == []

    page.get_by_role("button", name="Save").click()

    expect(page.get_by_text("Now: the trash is kept for 7 days")).to_be_visible()
    kept = Retention.objects.get()
    assert (kept.trash_days, kept.completion_days) == (7, 90)

    retain()
    page.goto(f"/alpha/runs/{done.pk}/completions/")

    expect(page.get_by_text("Completions were deleted")).to_be_visible()
    assert findings_in_each_view(page) == []
