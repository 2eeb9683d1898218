"""From a run's menu to a rescoring's result, in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.accounts.models import Team
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.datasets.trash import trash_dataset
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.analysis.rescoring.factories import (
    RIGHT,
    SHORT,
    make_scored_run,
    see_through,
    start,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def data_folder(settings) -> Path:
    """The web process's own: it is kept from test to test."""
    return Path(settings.COHORT_DATA)


def test_a_run_is_rescored_from_its_page(page, team):
    run = make_scored_run(team, num_steps=4)
    page.goto(f"/alpha/runs/{run.pk}/")
    page.get_by_label("More actions").click()
    page.get_by_role("link", name="Rescore").click()
    page.get_by_role("link", name="Rescore").first.click()
    expect(page.locator(".rescoring-what")).to_contain_text("reproducible")

    # An edit by htmx, in the editor that rewards have.
    page.get_by_role("button", name="Add rule").click()
    page.get_by_role("button", name="Add Length", exact=True).click()
    expect(page.locator("#editor .rules > li")).to_have_count(2)
    page.locator("#editor .rules > li").last.locator("summary").first.click()
    page.locator("[name='rules-1-params-maximum']").fill("4")
    page.get_by_label("Step interval").fill("2")
    page.get_by_role("button", name="Update estimate").click()
    expect(page.locator(".rescoring-what")).to_contain_text("16 of 32")
    page.get_by_role("button", name="Rescore", exact=True).click()
    expect(page.get_by_text("Waiting for a worker")).to_be_visible()

    see_through(Rescoring.objects.get(), beats=True)

    # The page finds out by itself.
    expect(page.locator(".state")).to_have_text("done", timeout=15_000)
    scatter = page.locator("[data-figure=scatter]")
    expect(scatter.locator(".scatterlayer .points path").first).to_be_visible()
    expect(page.locator("[data-figure=means] .lines path")).to_have_count(2)
    page.get_by_label("Show").select_option("all")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("show=all&sort=rank#changes"))
    expect(page.locator("#changes tbody tr")).to_have_count(16)
    page.locator("#changes tbody a").first.click()
    expect(page).to_have_url(re.compile(rf"/runs/{run.pk}/groups/[13]/\d/#completion"))


def test_a_point_opens_one_of_its_completions(page, team):
    rescoring = see_through(start(make_scored_run(team), [RIGHT, SHORT]), beats=True)
    page.goto(f"/alpha/rescorings/{rescoring.pk}/")
    point = page.locator("[data-figure=scatter] .points path").first
    expect(point).to_be_visible()
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("[data-figure=scatter] .hoverlayer .hovertext")).to_be_visible()
    page.mouse.down()
    page.mouse.up()

    expect(page).to_have_url(re.compile(r"/groups/1/\d/#completion-\d"))


def test_a_deletion_is_confirmed(page, team):
    rescoring = see_through(start(make_scored_run(team), [SHORT]), beats=True)
    page.goto(f"/alpha/rescorings/{rescoring.pk}/")

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    expect(page.get_by_text(f"Deleted rescoring {rescoring.pk}.")).to_be_visible()
    assert not Rescoring.objects.exists()


def nothing(team: Team) -> str:
    return "rescorings/"


def refused(team: Team) -> str:
    run = make_scored_run(team)
    trash_dataset(run.dataset_version.dataset, None)
    return f"rescorings/new?run={run.pk}"


@pytest.mark.parametrize("make", [nothing, refused])
def test_pages_are_accessible_and_do_not_scroll_sideways(page, team, make):
    address = f"/alpha/{make(team)}"

    page.goto(address)

    assert findings_in_each_view(page) == []
