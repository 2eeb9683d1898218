"""The operators' server page and the runbook."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run, RunState
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def make_story(team: Team) -> None:
    register("training@gpu-1", num_slots=1)
    register("training@gpu-2", num_slots=1)
    Worker.objects.filter(name="training@gpu-2").update(
        last_seen=Now() - timedelta(minutes=5)
    )
    run = make_run(team, "calm-otter-with-a-long-name-for-a-run")
    Run.objects.filter(pk=run.pk).update(
        state=RunState.RUNNING,
        worker="training@gpu-1",
        lease_until=Now() + timedelta(hours=1),
        ingest_lag=0.12,
    )
    make_run(team, "waits", state=RunState.QUEUED)


def take_pictures(page: Page, name: str) -> None:
    """Into the folder COHORT_PICTURES, if it is set."""
    folder = os.environ.get("COHORT_PICTURES")
    if not folder:
        return
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
            path = Path(folder) / f"{name}-{width}-{theme}.png"
            page.screenshot(path=path, full_page=True)
    page.set_viewport_size({"width": 1440, "height": 900})


def test_the_page_names_broken_parts_and_refreshes_in_place(team, open_browser):
    make_story(team)
    page = open_browser(User.objects.create_user("olga", is_staff=True)).new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto("/admin/")
    page.get_by_role("link", name="Server").click()

    lost = page.get_by_role("row", name="training@gpu-2")
    expect(lost).to_contain_text("failed")
    take_pictures(page, "server")
    assert findings_in_each_view(page) == []

    page.get_by_role(
        "link", name="the log of each process"
    ).scroll_into_view_if_needed()
    assert page.evaluate("scrollY") > 0
    summary = page.locator(".server-sum")
    before, text = lost.bounding_box(), summary.inner_text()
    expect(summary).not_to_have_text(text, timeout=20_000)
    assert lost.bounding_box() == before  # a refresh every 10 s moves nothing
    Worker.objects.filter(name="training@gpu-2").update(last_seen=Now())
    expect(lost).to_contain_text("ok", timeout=20_000)

    page.get_by_role("link", name="Runbook").click()
    expect(page.get_by_role("heading", name="Where to begin")).to_be_visible()
    take_pictures(page, "runbook")
    assert findings_in_each_view(page) == []
    assert refused == []
