"""What a team's trash costs is seen before it is deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.upkeep.models import Quota, Retention, Use
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.samples.factories import make_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_an_admin_looks_at_what_goes_then_keeps_the_number(
    page: Page, team: Team
) -> None:
    now = timezone.now()
    Use.objects.create(team=team, parts={"runs": 3 * 10**9}, measured_at=now)
    Quota.objects.create(team=team, max_bytes=5 * 10**9, max_runs=4)
    make_run(team, "old-run", trashed_at=now - timedelta(days=9))
    page.goto("/alpha/settings")

    page.get_by_role("link", name="Storage").click()
    page.get_by_label("Days in the trash").fill("7")
    page.get_by_role("button", name="Preview").click()

    expect(page.get_by_text("1 of 1 run in the trash")).to_be_visible()
    expect(page.get_by_role("link", name="old-run")).to_be_visible()
    assert findings_in_each_view(page) == []

    page.get_by_role("button", name="Keep the trash for 7 days").click()

    expect(page.get_by_text("The trash is kept for 7 days")).to_be_visible()
    assert Retention.objects.get().trash_days == 7
