"""Pages of an external run."""

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from dashboard.supervision.external_runs import open_run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_an_external_run_is_watched_and_closed(page, team, alice):
    run: Run = open_run(OPENING, team=team, user=alice)[0]
    log = LogBuilder().stepped(1).stepped(2)
    send(run, log)
    page.goto(f"/{team.slug}/runs/{run.pk}/")
    expect(page.locator("[data-run-step]")).to_have_text("2")

    send(run, log.stepped(3), first=7)

    expect(page.locator("[data-run-step]")).to_have_text("3")
    found = findings_in_each_view(page)
    for tab in ("prompts", "config", "checkpoints"):
        page.goto(f"/{team.slug}/runs/{run.pk}/{tab}/")
        found += findings_in_each_view(page)
    assert found == []
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Close the run").click()
    expect(page.locator("[data-run-stopped]")).to_contain_text("alice")
