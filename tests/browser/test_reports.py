"""A report from its first word to its file, as its writer and its readers see it."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.runs.models import Run
from tests.dashboard.analysis.reports.stories import (
    make_measured_run,
    make_other_run,
    make_report,
    make_sampled_group,
)

pytestmark = pytest.mark.browser


@pytest.fixture
def runs(team) -> tuple[Run, Run]:
    run = make_measured_run(team)
    make_sampled_group(run)
    return run, make_other_run(team)


def test_a_report_is_written_pinned_and_shared(page, runs, open_browser):
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    run, other = runs
    page.goto("/alpha/reports/new")
    page.get_by_label("Title").fill("Does it help?")
    text = page.get_by_label("Text, in Markdown")
    text.fill("It does: $x^2$.")
    insert_chart(page)
    expect(text).to_have_value(
        re.compile(rf"^It does: \$x\^2\$\.\n\n::chart runs={other.pk},{run.pk} ")
    )
    text.press_sequentially(f"/alpha/runs/{run.pk}/groups/40/3/\n")
    text.press_sequentially(f"/alpha/compare?runs={run.pk},{other.pk}")
    preview = page.get_by_role("region", name="Preview")
    expect(preview.locator("figure")).to_have_count(3)
    expect(preview.locator("math")).to_be_visible()
    page.keyboard.press("Control+s")

    page.wait_for_url(re.compile(r"/alpha/reports/\d+/$"))
    chart, group, comparison = (page.locator("figure").nth(i) for i in range(3))
    expect(chart).to_contain_text("Pinned 20")
    expect(group).to_contain_text("Live")
    expect(comparison).to_contain_text("Group size")
    read_by_keyboard(page)
    group.get_by_role("button", name="Pin now").click()
    expect(page.locator("figure").nth(1)).to_contain_text("Pinned 20")

    page.get_by_text("Sharing: the team").click()
    page.get_by_role("button", name="Create public link").click()
    link = page.get_by_label("Public link").input_value()
    read_signed_out(open_browser(None).new_page(), link)
    assert trouble == []


@pytest.mark.slow
def test_a_report_is_read_from_a_file(page, alice, team, runs, open_browser, tmp_path):
    line = f"::chart runs={runs[0].pk},{runs[1].pk} pin"
    report = make_report(team, alice, line, "Does it help?")
    page.goto(f"/alpha/reports/{report.pk}/")

    with page.expect_download() as download:
        page.get_by_role("link", name="HTML").click()
    path = tmp_path / "report.html"
    download.value.save_as(path)
    read_from_disk(open_browser(None), path)
    page.emulate_media(media="print")
    expect(page.get_by_role("banner")).to_be_hidden()
    expect(page.get_by_role("link", name="HTML")).to_be_hidden()
    expect(page.locator("polyline").first).to_be_visible()


def insert_chart(page: Page) -> None:
    page.get_by_text("Insert a block").click()
    card = page.locator("[data-insert-card]")
    # The newest come first; each choice shows what else can be chosen.
    card.get_by_label("brave-finch-2").check()
    expect(card.get_by_label("calm-otter-1")).not_to_be_checked()
    expect(card.locator("[data-insert-line]")).to_be_visible()
    card.get_by_label("calm-otter-1").check()
    expect(card.locator("[data-insert-line]")).to_contain_text(",")
    card.get_by_label("Pin on save").check()
    expect(card.locator("[data-insert-line]")).to_contain_text("pin")
    card.get_by_role("button", name="Insert").click()


def read_by_keyboard(page: Page) -> None:
    box = page.locator("[data-report-chart]").first
    box.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(box.get_by_role("status")).to_contain_text("Step 59: brave-finch-2 0.64")


def read_signed_out(page: Page, link: str) -> None:
    trouble: list[str] = []
    page.on("console", lambda expected: trouble.append(expected.text))
    page.goto(link)
    expect(page.get_by_role("heading", name="Does it help?")).to_be_visible()
    expect(page.locator("figure")).to_have_count(3)
    expect(page.locator("polyline").first).to_be_visible()
    # Its stylesheet counts, though the page allows nothing but that one.
    border = "getComputedStyle(document.querySelector('figure')).borderTopWidth"
    assert page.evaluate(border) == "1px"
    assert page.locator("a").count() == 0
    assert trouble == []


def read_from_disk(context: BrowserContext, path: Path) -> None:
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    context.set_offline(True)
    page.goto(path.as_uri())
    expect(page.locator("polyline").first).to_be_visible()
    border = "getComputedStyle(document.querySelector('figure')).borderTopWidth"
    assert page.evaluate(border) == "1px"
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert asked == [path.as_uri()]


@pytest.mark.slow
def test_a_concurrent_save_is_shown_next_to_the_own_text(page, alice, team):
    report = make_report(team, alice, "As it was")
    page.goto(f"/alpha/reports/{report.pk}/edit")
    other = page.context.new_page()
    other.goto(f"/alpha/reports/{report.pk}/edit")
    for tab, text in ((other, "Theirs"), (page, "Mine")):
        tab.get_by_label("Text, in Markdown").fill(text)
        tab.get_by_role("button", name="Save").click()

    expect(page.locator("[data-conflict]")).to_be_visible()
    expect(page.locator("ins")).to_have_text("+ Mine")
    expect(page.get_by_label("Text, in Markdown")).to_have_value("Mine")
    page.get_by_role("button", name="Save").click()

    expect(page.locator("article")).to_have_text("Mine")
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("row")).to_have_count(4)
