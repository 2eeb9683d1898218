"""A page whose protocol version differs from the server's."""

import re

import pytest
from playwright.sync_api import Page, Request, Route, expect

from dashboard.live.messages import PROTOCOL
from tests.browser.accessibility import findings
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SCRIPT = re.compile(r"/js/live/stream\.js$")


@pytest.fixture
def story(team) -> Story:
    story = Story(queue_run(team))
    story.start()
    story.take_steps(3)
    return story


def serve_script_of(page: Page, protocol: int) -> None:
    """Serve the page's script with another protocol version."""

    def respond(route: Route) -> None:
        real = route.fetch()
        text = real.text()
        other = text.replace(f"PROTOCOL = {PROTOCOL};", f"PROTOCOL = {protocol};")
        assert other != text
        # Not cached: the URL is that of the current version.
        headers = {**real.headers, "cache-control": "no-store"}
        route.fulfill(response=real, headers=headers, body=other)

    page.route(SCRIPT, respond)


def test_an_older_page_shows_one_notice_and_keeps_unsaved_text(page, story):
    sockets: list[str] = []
    urls: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.on("request", lambda request: urls.append(request.url))
    serve_script_of(page, PROTOCOL - 1)

    page.goto(f"/alpha/runs/{story.run.id}/groups/")

    notice = page.get_by_role("alert").and_(page.locator("[data-notice=outdated]"))
    expect(notice).to_have_count(1)
    link = page.locator("[data-run-link]")
    expect(link).to_have_attribute("data-link", "outdated")
    assert findings(page) == []
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Name, notes, tags").click()
    page.get_by_role("textbox", name="Notes").fill("half a thought")
    story.take_steps(2)
    page.wait_for_timeout(1_500)
    expect(page.get_by_role("textbox", name="Notes")).to_have_value("half a thought")
    expect(page.locator("[data-run-step]")).to_have_text("3")
    assert len(sockets) == 1
    assert not [url for url in urls if "stream.json" in url]
    # The newer server accepts the text.
    page.get_by_role("button", name="Save", exact=True).click()
    expect(notice).to_have_count(1)
    story.run.refresh_from_db()
    assert story.run.notes == "half a thought"

    page.unroute(SCRIPT)
    page.get_by_role("button", name="Reload the page").click()
    expect(page.locator("[data-run-link]")).to_have_attribute("data-link", "live")
    expect(page.locator("[data-run-step]")).to_have_text("5")
    expect(page.locator("[data-run-version]")).to_be_empty()


def test_a_newer_page_waits_with_a_notice(page, story):
    polls: list[Request] = []
    page.on(
        "request",
        lambda request: polls.append(request) if "stream.json" in request.url else None,
    )
    serve_script_of(page, PROTOCOL + 1)

    page.goto(f"/alpha/runs/{story.run.id}/")

    link = page.locator("[data-run-link]")
    expect(link).to_have_attribute("data-link", "ahead")
    notice = page.get_by_role("alert").and_(page.locator("[data-notice=ahead]"))
    expect(notice).to_have_count(1)
    page.wait_for_timeout(1_500)
    expect(link).to_have_attribute("data-link", "ahead")
    expect(page.locator("[data-run-step]")).to_have_text("3")
    assert 1 <= len(polls) <= 4
