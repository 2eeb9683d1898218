"""A run at one glance: what is on the first screen, and what moves while it trains."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.runs.models import RunState
from dashboard.runs.queries import run_directory
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.browser
TOPS = """(parts) => Object.fromEntries(parts.map((part) =>
  [part, document.querySelector(part).getBoundingClientRect().top]))"""
BOTTOM = """Math.max(...[...document.querySelectorAll(".overview .card")].map(
  (card) => card.getBoundingClientRect().bottom))"""
REWARD = "document.querySelector('[data-chart=\"reward-mean\"]')"


def take_step(story: Story, **metrics: float) -> None:
    story.step += 1
    for prompt in (3, 5):
        story.score_group(prompt)
    story.step -= 1
    story.take_steps(1, **metrics)


def train(team: Team, *, num_steps: int) -> Story:
    story = Story(queue_run(team, num_steps=20))
    story.start()
    ends = {"eval/heldout/mean/low": 0.05, "eval/heldout/mean/high": 0.15}
    story.evaluate(**ends)
    for _ in range(num_steps):
        take_step(story)
    return story


def open_run(page: Page, story: Story, query: str = "") -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/alpha/runs/{story.run.pk}/{query}")
    wait_until(page, f"{REWARD}.data?.length > 0")
    expect(page.locator("[data-sample]")).to_have_count(2)


def places(page: Page) -> dict[str, Any]:
    parts = ["[data-verdict]", ".tile", ".chart", "[data-samples]"]
    found: dict[str, Any] = page.evaluate(TOPS, parts)
    return found


@pytest.mark.parametrize(
    "state",
    [RunState.RUNNING, pytest.param(RunState.FINISHED, marks=pytest.mark.slow)],
)
def test_the_first_screen_has_it_all(page, team, state):
    story = train(team, num_steps=20)
    story.save_checkpoint()
    if state == RunState.FINISHED:
        story.end(state)

    open_run(page, story)

    top = places(page)
    assert top["[data-verdict]"] < top[".tile"] < top[".chart"]
    assert top["[data-samples]"] == top[".chart"]
    assert page.locator(".chart").count() == 4
    height = page.locator(".chart").first.bounding_box()
    assert height is not None
    assert 250 <= height["height"] <= 270
    assert page.evaluate(BOTTOM) <= 900
    assert page.locator(".chart-options").is_hidden()

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(200)
    top = places(page)
    order = ["[data-verdict]", ".tile", ".chart", "[data-samples]"]
    assert sorted(top, key=lambda part: top[part]) == order
    tiles = [tile.bounding_box() for tile in page.locator(".tile").all()[:3]]
    first, second, third = (tile for tile in tiles if tile)
    assert first["y"] == second["y"] < third["y"]


def test_numbers_verdict_and_samples_follow_the_run(page, team):
    story = train(team, num_steps=2)
    open_run(page, story)
    page.evaluate("window.isTheSamePage = true")
    verdict = page.locator("[data-verdict]")
    before = verdict.inner_text()

    take_step(story, **{"reward/mean": 0.9375})

    expect(page.locator("[data-run-step]")).to_have_text("3")
    value = page.locator('[data-tile="reward/mean"] [data-tile-value]')
    expect(value).to_have_text("0.938", timeout=60_000)
    expect(verdict).not_to_have_text(before)
    expect(page.locator("[data-sample-step]")).to_have_text("3", timeout=60_000)
    assert page.title().startswith("3/20 · ")

    page.locator("[data-sample-next]").click()
    expect(page.locator("[data-sample-place]")).to_have_text("2")
    assert page.url.endswith("?step=3&group=2")
    take_step(story)
    expect(page.locator("[data-run-step]")).to_have_text("4")
    page.reload()
    expect(page.locator("[data-sample-step]")).to_have_text("3")
    expect(page.locator("[data-sample-place]")).to_have_text("2")

    story.end(RunState.FINISHED)
    expect(page.locator("[data-result]")).to_be_visible(timeout=20_000)
    expect(page.locator("[data-run-bar]")).to_be_hidden()
    assert page.title().startswith("✓ ")


@pytest.mark.slow
def test_few_points_are_marked_on_an_axis_of_twice_the_steps(page, team):
    story = train(team, num_steps=1)

    open_run(page, story)

    line = f"{REWARD}.data.at(-1)"
    assert page.evaluate(f"{line}.mode") == "lines+markers"
    assert page.evaluate(f"{line}.x") == [1]
    for chart in ("reward-mean", "eval-heldout-mean", "group-frac", "kl-mean"):
        plot = f"document.querySelector('[data-chart=\"{chart}\"]')"
        wait_until(page, f"{plot}.data?.length > 0")
        assert page.evaluate(f"{plot}._fullLayout.xaxis.range") == [0, 2], chart
    band = f"{REWARD}.data.slice(0, 2).map(({{ y }}) => y[0])"
    low, high = page.evaluate(band)
    assert 0 <= low <= high <= 1.2  # within what the recipe can give


@pytest.mark.slow
def test_flat_charts_are_folded(page, team):
    story = Story(queue_run(team))
    story.start()
    flat = {"clip/frac_dual": 0.0, "mismatch/max": 9e-5}
    story.take_steps(2, **flat)
    page.goto(f"/alpha/runs/{story.run.pk}/metrics/")
    button = page.locator("[data-flat]")
    # The two metrics and the chart of sampler mismatch, which has no other.
    expect(button).to_contain_text("3 flat")
    for chart in ("clip-frac_dual", "mismatch-max", "mismatch"):
        expect(page.locator(f"#chart-{chart}")).to_be_hidden()
    expect(page.locator("#chart-lr")).to_be_visible()

    button.click()

    expect(page.locator("#chart-mismatch")).to_be_visible()
    assert page.url.endswith("?flat=1")
    page.reload()
    expect(page.locator("#chart-mismatch")).to_be_visible()

    page.goto(f"/alpha/runs/{story.run.pk}/metrics/?q=mismatch")
    expect(page.locator("#chart-mismatch-max")).to_be_visible()
    page.get_by_label("Find metrics").fill("")
    expect(page.locator("#chart-mismatch-max")).to_be_hidden()

    story.take_steps(1, **{"mismatch/max": 0.5})
    expect(page.locator("#chart-mismatch-max")).to_be_visible()
    expect(button).to_contain_text("1 flat")


@pytest.mark.slow
def test_a_tile_opens_its_chart(page, team):
    story = train(team, num_steps=3)
    open_run(page, story)

    page.locator('[data-tile="group/num_effective"] .tile-title').click()
    assert page.url.endswith("#chart-group-frac")
    page.locator('[data-tile="completion/mean_length"] .tile-title').click()

    page.wait_for_url("**/metrics/#chart-completion-mean_length")
    expect(page.locator("#chart-completion-mean_length")).to_be_in_viewport()


@pytest.mark.slow
def test_open_chart_settings_have_no_accessibility_findings(page, team):
    open_run(page, train(team, num_steps=3))

    page.locator(".chart-gear").click()

    assert findings_in_each_view(page) == []


@pytest.mark.slow
def test_a_failed_run_shows_the_end_of_its_log(page, team):
    story = train(team, num_steps=1)
    log = run_directory(story.run.pk).attempt(1).trainer_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"line {number}\n" for number in range(1, 41)))
    open_run(page, story)
    card = page.locator("[data-run-failure]")
    expect(card).to_have_count(0)

    story.end(RunState.FAILED)

    lines = card.locator("[data-run-failure-log]")
    expect(lines).to_contain_text("line 40", timeout=20_000)
    assert lines.inner_text().rstrip().split("\n") == [
        f"line {n}" for n in range(21, 41)
    ]
    assert findings_in_each_view(page) == []
    card.get_by_role("link", name="Change settings and launch again").click()
    page.wait_for_url(f"**/runs/new?clone={story.run.pk}")


@pytest.mark.slow
def test_a_run_is_renamed_in_place(page, team):
    story = train(team, num_steps=1)
    open_run(page, story)
    name = page.locator("[data-run-name]")

    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Name").fill("never")
    page.keyboard.press("Escape")
    expect(name).to_have_text(story.run.name)

    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Name").fill("warmer")
    page.keyboard.press("Enter")
    expect(name).to_have_text("warmer")
    story.run.refresh_from_db()
    assert story.run.name == "warmer"
    assert story.run.tags == []


@pytest.mark.slow
def test_a_comment_is_counted_without_leaving_the_page(page, team):
    story = train(team, num_steps=1)
    open_run(page, story)
    count = page.locator("#num-comments")
    expect(count).to_be_hidden()

    field = page.get_by_role("textbox", name="Comment on this run")
    field.fill("It guesses.")
    page.get_by_role("button", name="Comment", exact=True).click()

    expect(count).to_have_text("1 comment")
    expect(field).to_have_value("")
    comment = page.get_by_role("listitem").filter(has_text="It guesses.")
    comment.get_by_role("link").click()
    page.wait_for_url("**/#comment-*")
    assert findings_in_each_view(page) == []
    comment.get_by_role("button", name="Delete").click()
    expect(count).to_be_hidden()
    expect(comment).to_have_count(0)
