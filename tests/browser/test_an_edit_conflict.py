"""Two users save the same run: the second sees both texts and saves again."""

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Membership, Role
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view, looking_with
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.browser
THEIRS = "Diverges at step 40.\nThe KL rises before the reward falls."
MINE = "Diverges at step 40.\nA learning rate of 1e-6 holds.\nTried twice."


def write(page: Page, run: Run, notes: str) -> None:
    page.goto(f"/alpha/runs/{run.pk}/")
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Name, notes, tags").click()
    page.get_by_role("textbox", name="Notes").fill(notes)


def save(page: Page) -> None:
    page.locator("#describe-run").get_by_role("button", name="Save").click()


@pytest.mark.slow
@looking_with(findings_in_each_view)
def test_a_conflict_shows_both_texts_and_is_saved_again(
    page, team, bob, open_browser, look
):
    Membership.objects.filter(user=bob).update(role=Role.MEMBER)
    run = queue_run(team, notes="Diverges at step 40.")
    other = open_browser(bob).new_page()
    write(page, run, MINE)
    write(other, run, THEIRS)
    save(other)
    expect(other.get_by_role("status").get_by_text("notes")).to_be_visible()

    save(page)

    clash = page.locator("[data-clash=notes]")
    expect(clash.get_by_label("Saved", exact=True)).to_have_text(THEIRS)
    expect(clash.get_by_label("Yours", exact=True)).to_have_value(MINE)
    assert look(page) == []
    page.get_by_label("Yours", exact=True).fill(f"{MINE}\n{THEIRS}")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"**/alpha/runs/{run.pk}/")
    run.refresh_from_db()
    assert run.notes == f"{MINE}\n{THEIRS}"


def test_concurrent_priority_changes_conflict(page, team, bob):
    run = queue_run(team)
    page.goto("/alpha/compute/")
    choice = page.get_by_label(f"Priority of {run.name}")
    choice.focus()
    Run.objects.filter(pk=run.pk).update(priority=1)

    choice.select_option("low")

    clash = page.locator("[data-clash=priority]")
    expect(clash.get_by_label("Saved", exact=True)).to_have_text("high")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/alpha/compute/")
    run.refresh_from_db()
    assert run.priority == -1
