"""A run's page while the run trains."""

import json
import re
import time

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.models import Run, RunState
from dashboard.runs.state import transition
from dashboard.runs.stream import read_snapshot
from tests.browser.accessibility import findings
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.browser
REWARD = '[data-chart="reward-mean"]'
GRID_COLORS = """[...new Set(
  [...document.querySelectorAll("[data-chart] .gridlayer path")].map(
    (line) => getComputedStyle(line).stroke
  )
)]"""
NUM_OUT_OF_VIEW = """[...document.querySelectorAll(".js-plotly-plot")].filter(
  (chart) => chart.getBoundingClientRect().top > innerHeight + 200
).length"""
POINTS = f"document.querySelector('{REWARD}').data?.at(-1).x.length"


@pytest.fixture
def story(team) -> Story:
    story = Story(queue_run(team))
    story.start()
    story.take_steps(5)
    return story


@pytest.fixture
def problems(page) -> list[str]:
    """Errors of the browser, including violations of the content security policy."""
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors


def open_run(page: Page, story: Story, query: str = "") -> None:
    page.goto(f"/alpha/runs/{story.run.id}/{query}")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    wait_for_points(page, story.step)


def wait_for_points(page: Page, number: int) -> None:
    # Playwright's own wait_for_function needs eval, which the page's policy refuses.
    deadline = time.monotonic() + 15
    while page.evaluate(POINTS) != number:
        assert time.monotonic() < deadline, f"{page.evaluate(POINTS)} points"
        page.wait_for_timeout(50)


def test_a_list_ticks_live_until_the_first_step(page, team, problems):
    run = queue_run(team)
    page.goto(f"/alpha/runs/{run.id}/")
    items = page.locator("[data-starting] li")
    chart = page.locator(REWARD)

    def expect_done(count: int) -> None:
        expect(page.locator("[data-starting] [data-done=true]")).to_have_count(count)
        expect(items.nth(count)).to_have_attribute("aria-current", "step")

    expect(items).to_have_count(4)
    expect_done(0)
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    assert findings(page) == []
    story = Story(run)
    expect_done(1)
    story.start()
    expect_done(2)
    story.evaluate()
    expect_done(3)
    expect(chart).to_be_hidden()
    story.take_steps(1)
    expect(page.locator("[data-starting]")).to_have_count(0)
    expect(chart).to_be_visible()
    wait_for_points(page, 1)
    assert page.evaluate(f"document.querySelector('{REWARD}').clientHeight") > 100
    assert problems == []


def test_steps_reach_the_charts_without_a_reload(page, story, problems):
    open_run(page, story)
    story.take_steps(3, **{"reward/mean": 0.625})

    expect(page.locator("[data-run-step]")).to_have_text("8")
    wait_for_points(page, 8)
    tile = page.locator('[data-tile="reward/mean"] [data-tile-value]')
    expect(tile).to_have_text("0.625", timeout=20_000)
    assert page.title() == f"8/{story.run.num_steps} · {story.run.name} · Cohort"
    assert problems == []


@pytest.mark.slow
def test_a_cached_snapshot_does_not_roll_the_page_back(page, story):
    older = read_snapshot(Run.objects.get())
    story.take_steps(2)
    transition(story.run.id, sources=[RunState.RUNNING], target=RunState.STOPPED)
    page.route_web_socket("**/ws/**", lambda socket: socket.send(json.dumps(older)))

    page.goto(f"/alpha/runs/{story.run.id}/")

    wait_for_points(page, 5)
    expect(page.locator("[data-run-state]")).to_have_text("stopped")
    expect(page.locator("[data-run-step]")).to_have_text("7")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()


@pytest.mark.slow
def test_a_paused_run_is_not_called_live(page, story):
    open_run(page, story)
    link = page.locator("[data-run-link]")
    expect(link).not_to_be_empty()

    transition(story.run.id, sources=[RunState.RUNNING], target=RunState.PAUSED)

    expect(link).to_be_empty()


@pytest.mark.slow
def test_warnings_of_the_trainer_appear_without_a_reload(page, story):
    story.warn("truncated", "Truncated.", value=0.75, threshold=0.5)
    open_run(page, story)
    story.warn("kl", "High KL.")

    expect(page.locator("[data-warnings] p")).to_contain_text(["High KL.", "0.75"])


@pytest.mark.slow
def test_a_reload_shows_the_same(page, story):
    open_run(page, story, "?smooth=0&x=step")
    values = f"document.querySelector('{REWARD}').data.at(-1).y"
    story.take_steps(4)
    wait_for_points(page, 9)
    before = page.evaluate(values)

    page.reload()
    wait_for_points(page, 9)

    assert page.evaluate(values) == before


@pytest.mark.slow
def test_without_sockets_the_page_polls_over_http(page, story):
    page.route_web_socket("**/ws/**", lambda socket: socket.close())
    page.goto(f"/alpha/runs/{story.run.id}/")
    wait_for_points(page, 5)

    story.take_steps(2)

    wait_for_points(page, 7)
    expect(page.locator("[data-run-link]")).to_have_attribute("data-link", "polling")


@pytest.mark.slow
def test_an_offline_page_shows_when_it_retries(page, story):
    page.route("**/stream.json*", lambda route: route.abort())
    page.route_web_socket("**/ws/**", lambda socket: socket.close())

    page.goto(f"/alpha/runs/{story.run.id}/")

    link = page.locator("[data-run-link]")
    expect(link).to_have_attribute("data-link", "offline")
    expect(link).to_contain_text(re.compile(r"\d+ s$"))
    page.unroute("**/stream.json*")
    expect(link).to_have_attribute("data-link", "polling", timeout=30_000)


@pytest.mark.slow
def test_smoothing_and_axis_are_in_the_url(page, story):
    open_run(page, story)

    page.locator(".chart-gear").click()
    page.get_by_label("Smoothing").fill("0.3")
    page.get_by_label("X axis").select_option("time")

    assert page.url.endswith("?smooth=0.3&x=time")
    page.reload()
    expect(page.get_by_label("Smoothing")).to_have_value("0.3")


@pytest.mark.slow
def test_a_click_on_a_point_shows_completions_of_its_step(page, team):
    story = Story(queue_run(team, num_steps=5))
    story.start()
    for _ in range(5):
        story.step += 1
        story.score_group()
        story.step -= 1
        story.take_steps(1)
    open_run(page, story)
    shown = page.locator("[data-sample-step]")
    expect(shown).to_have_text("5")
    box = page.locator(f"{REWARD} .nsewdrag").first.bounding_box()
    assert box is not None

    # The axis goes from 0 to 5.
    page.mouse.move(box["x"] + box["width"] * 3 / 5, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.up()

    expect(shown).to_have_text("3")
    assert page.url.endswith("?step=3")
    page.reload()
    expect(shown).to_have_text("3")
    page.locator("[data-sample-newest]").click()
    expect(shown).to_have_text("5")
    assert "step=" not in page.url


@pytest.mark.slow
def test_every_chart_changes_its_theme_without_a_reload(page, story):
    page.goto(f"/alpha/runs/{story.run.id}/metrics/")
    wait_for_points(page, story.step)
    # A chart stays drawn after it was in view.
    page.locator('[data-chart="tokens_per_second"]').scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.evaluate("scrollTo(0, 0)")
    page.set_viewport_size({"width": 500, "height": 300})
    wait_until(page, f"{NUM_OUT_OF_VIEW} > 1")
    (light,) = page.evaluate(GRID_COLORS)

    page.evaluate("cohortTheme.choose('dark')")
    wait_until(page, f"!{GRID_COLORS}.includes('{light}')")
    (dark,) = page.evaluate(GRID_COLORS)
    page.evaluate("cohortTheme.choose('light')")
    wait_until(page, f"!{GRID_COLORS}.includes('{dark}')")

    assert page.evaluate(GRID_COLORS) == [light]
