"""Charts of a run that are chosen, arranged and saved as a board."""

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.runs.models import SavedView
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.browser
ORDER = """[...document.querySelectorAll("[data-pinned] .chart:not([hidden])")]
  .map(({ id }) => id.replace("chart-", ""))"""


@pytest.fixture
def story(team) -> Story:
    story = Story(queue_run(team))
    story.start()
    story.take_steps(3)
    return story


def open_charts(page: Page, story: Story, charts: str) -> None:
    page.goto(f"/alpha/runs/{story.run.pk}/metrics/?smooth=0&show={charts}")
    expect(page.locator(".metrics[data-ready]")).to_be_visible()


def order(page: Page) -> list[str]:
    shown: list[str] = page.evaluate(ORDER)
    return shown


def button(page: Page, chart: str, part: str) -> Locator:
    return page.locator(f"#chart-{chart} [data-chart-order] [data-{part}]")


def test_charts_are_arranged_by_keyboard_and_saved_as_a_board(page, team, story):
    open_charts(page, story, "lr,no-such,reward/p90,entropy")
    # The reward's chart draws this edge of its band.
    assert order(page) == ["lr", "reward-mean", "entropy"]
    expect(page.locator("[data-missing]")).to_contain_text("1 of 4")

    arrange = page.get_by_role("button", name="Arrange")
    arrange.press("Enter")
    later = button(page, "lr", "move='1'")
    later.press("Enter")
    assert order(page) == ["reward-mean", "lr", "entropy"]
    expect(later).to_be_focused()
    later.press("ArrowRight")
    later.press("ArrowRight")  # there is no place after the last
    assert order(page) == ["reward-mean", "entropy", "lr"]
    later.press("ArrowUp")
    expect(page.locator("[data-order-status]")).to_contain_text("2 of 3")
    button(page, "reward-mean", "remove").press("Enter")
    expect(button(page, "lr", "remove")).to_be_focused()
    assert order(page) == ["lr", "entropy"]
    # The chart that this run lacks keeps its place.
    assert "show=no-such,lr,entropy" in page.url
    arrange.press("Enter")
    expect(page.locator("[data-chart-order]")).to_have_count(0)

    page.locator("[data-boards] summary").press("Enter")
    page.get_by_label("Save board as").fill("Debug")
    page.get_by_role("button", name="Save board").press("Enter")
    expect(page.locator("[data-first-title]")).to_have_text("Debug")
    board = SavedView.objects.get()
    assert "smooth=0&" in board.query

    other = Story(queue_run(team))
    other.start()
    other.take_steps(1, **{"no/such": 1.0})
    page.goto(f"/alpha/runs/{other.run.pk}/metrics/?board={board.code}")
    expect(page.locator("#chart-no-such")).to_be_visible()
    assert order(page) == ["no-such", "lr", "entropy"]
    expect(page.locator("[data-missing]")).to_be_hidden()
    changed = page.locator("h2 [data-board-part=changed]")
    expect(changed).to_be_hidden()
    page.get_by_role("button", name="Arrange").click()
    button(page, "no-such", "move='1'").click()
    expect(changed).to_be_visible()
    page.locator("[data-boards] summary").click()
    with page.expect_navigation():
        page.get_by_role("button", name="Update board").click()
    expect(changed).to_be_hidden()
    expect(page.locator("#chart-no-such")).to_be_visible()
    assert order(page) == ["lr", "no-such", "entropy"]
    page.get_by_role("button", name="Show all").click()
    page.reload()
    expect(page.locator("#chart-reward-mean")).to_be_visible()


@pytest.mark.slow
def test_a_link_to_a_chart_shows_it_on_a_board_without_it(page, story):
    for name, is_shown in (
        ("chart-entropy", "chart-entropy"),
        ("machine", "chart-machine-cpu"),
    ):
        page.goto("about:blank")
        page.goto(f"/alpha/runs/{story.run.pk}/metrics/?show=lr#{name}")
        expect(page.locator(f"#{is_shown}")).to_be_visible()


@pytest.mark.slow
def test_a_chart_is_dragged_before_another(page, story):
    open_charts(page, story, "lr,reward-mean,entropy")
    page.get_by_role("button", name="Arrange").click()
    held = button(page, "entropy", "place")
    target = page.locator("#chart-lr").bounding_box()
    assert target is not None

    held.hover()
    page.mouse.down()
    page.mouse.move(target["x"] + 20, target["y"] + 60, steps=4)
    expect(page.locator("#chart-lr[data-drop=before]")).to_be_visible()
    page.mouse.up()

    assert order(page) == ["entropy", "lr", "reward-mean"]
    assert "show=entropy,lr,reward-mean" in page.url
    expect(page.locator("[data-drop], [data-dragged]")).to_have_count(0)


@pytest.mark.slow
def test_new_points_and_metrics_come_into_arranged_charts(page, story):
    open_charts(page, story, "machine-cpu,later-metric,entropy,lr")
    points = "document.querySelector('[data-chart=entropy]').data?.at(-1).x.length"
    page.get_by_role("button", name="Arrange").click()
    button(page, "entropy", "move='1'").click()
    wait_until(page, f"{points} === 3")

    story.take_steps(2, **{"later/metric": 0.5})

    wait_until(page, f"{points} === 5")
    expect(page.locator("[data-pinned] #chart-later-metric")).to_be_visible()
    assert order(page) == ["machine-cpu", "later-metric", "lr", "entropy"]
    expect(page.locator("[data-missing]")).to_be_hidden()
    expect(button(page, "later-metric", "place")).to_have_text("2 of 4")
    # The axis of machine charts is chosen in their section.
    expect(page.locator("[data-system-axis]")).to_be_visible()


@pytest.mark.slow
def test_an_open_board_has_no_accessibility_findings(page, story, alice):
    board = SavedView.objects.create(
        team=story.run.team, owner=alice, page="metrics", name="B" * 60, query="show=lr"
    )
    page.goto(f"/alpha/runs/{story.run.pk}/metrics/?board={board.code}")
    page.get_by_role("button", name="Arrange").click()
    expect(page.locator("[data-chart-order]")).to_be_visible()

    assert findings_in_each_view(page) == []
    page.locator("[data-boards] summary").click()
    assert findings_in_each_view(page) == []
