"""The web process is killed and restarted under an open run page."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.shown import TALL, assert_a_fresh_page_shows_the_same
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
REWARD = "document.querySelector('[data-chart=\"reward-mean\"]').data?.at(-1)"


def take_step(story: Story) -> None:
    story.step += 1
    story.score_group(story.step % 3)
    story.step -= 1
    story.take_steps(1)


def test_the_page_reconnects_and_catches_up(page, team, web_processes):
    story = Story(queue_run(team))
    story.start()
    for _ in range(6):
        take_step(story)
    page.set_viewport_size(TALL)
    page.goto(f"/alpha/runs/{story.run.id}/?smooth=0")
    link = page.locator("[data-run-link]")
    expect(link).to_have_attribute("data-link", "live", timeout=15_000)
    wait_until(page, f"{REWARD}?.x.length === 6")
    page.evaluate("window.isTheSamePage = true")

    web_processes.kill()
    expect(link).to_have_attribute("data-link", "offline")
    # The run continues meanwhile.
    for _ in range(5):
        take_step(story)
    story.evaluate()
    story.warn("truncated", "Truncated.")
    story.save_checkpoint()
    page.wait_for_timeout(3_000)
    assert page.evaluate(f"{REWARD}.x.length") == 6
    expect(link).to_have_attribute("data-link", re.compile("offline|connecting"))
    web_processes.restart()

    expect(link).to_have_attribute("data-link", "live", timeout=20_000)
    wait_until(page, f"{REWARD}.x.length === 11")
    assert page.evaluate(f"{REWARD}.customdata") == list(range(1, 12))
    take_step(story)
    wait_until(page, f"{REWARD}.x.length === 12")
    assert page.evaluate("window.isTheSamePage")
    assert_a_fresh_page_shows_the_same(page)
