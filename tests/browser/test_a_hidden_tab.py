"""A run's page in a hidden tab draws nothing and catches up when visible."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run
from tests.fixtures_app import CHROMIUM_FLAGS, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.slow]
REWARD = "document.querySelector('[data-chart=\"reward-mean\"]')"
MAP = "document.querySelector('[data-signal-chart=\"map\"]')"
COUNT_DRAWINGS = """
(() => {
  const { react } = Plotly;
  window.drawings = 0;
  Plotly.react = (...args) => { window.drawings += 1; return react(...args); };
})()
"""


@pytest.fixture
def tab(playwright, live_app, alice, tmp_path) -> Iterator[Page]:
    """Of a browser with defaults: Playwright's own pages are always visible."""
    profile = tmp_path / "profile"
    command = [shutil.which("chromium") or "chromium-browser", *CHROMIUM_FLAGS]
    command += ["--headless=new", "--remote-debugging-port=0"]
    child = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port_of(profile, child)
        browser = playwright.chromium.connect_over_cdp(
            f"http://127.0.0.1:{port}", no_defaults=True
        )
        context = browser.contexts[0]
        sign_in(context, alice, live_app)
        yield context.pages[0]
        browser.close()
    finally:
        child.terminate()
        child.wait(20)


def _port_of(profile: Path, child: subprocess.Popen[bytes]) -> str:
    message = profile / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while not (message.exists() and message.read_text()):
        assert child.poll() is None, "chromium ended at once"
        assert time.monotonic() < deadline, "chromium names no port"
        time.sleep(0.1)
    return message.read_text().split()[0]


def take_steps(story: Story, count: int) -> None:
    for _ in range(count):
        story.step += 1
        story.score_group(story.step % 3)
        story.step -= 1
        story.take_steps(1)


def test_a_hidden_tab_draws_nothing_and_catches_up(tab, live_app, team):
    story = Story(queue_run(team))
    story.start()
    take_steps(story, 5)
    tab.goto(f"{live_app}/alpha/runs/{story.run.id}/metrics/?smooth=0")
    expect(tab.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=20_000
    )
    wait_until(tab, f"{REWARD}.data?.at(-1).x.length === 5")
    tab.get_by_role("heading", name="Signal map").scroll_into_view_if_needed()
    wait_until(tab, f"{MAP}.data?.[0].x.length === 5")
    row = tab.locator('[data-value="lr"] [data-last]')
    before = row.inner_text()

    other = tab.context.new_page()
    wait_until(tab, "document.hidden")
    tab.evaluate(COUNT_DRAWINGS)
    take_steps(story, 7)
    # Frames still arrive and update the header.
    expect(tab.locator("[data-run-step]")).to_have_text("12")
    tab.wait_for_timeout(4_000)
    assert tab.evaluate("window.drawings") == 0
    assert row.inner_text() == before

    other.close()
    wait_until(tab, "!document.hidden")
    wait_until(tab, f"{MAP}.data[0].x.length === 12")
    expect(row).not_to_have_text(before)
    tab.locator('[data-chart="reward-mean"]').scroll_into_view_if_needed()
    wait_until(tab, f"{REWARD}.data.at(-1).x.length === 12")
    assert tab.evaluate(f"{REWARD}.data.at(-1).customdata") == list(range(1, 13))
