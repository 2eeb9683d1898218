"""A firing alert is marked on open charts of its metric."""

import pytest
from playwright.sync_api import expect

from dashboard.alerts.models import Alert
from tests.browser.accessibility import findings
from tests.browser.waiting import wait_until
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SHOW = "document.querySelector('[data-chart=\"{}\"]')"
MARKS = SHOW + ".layout?.shapes?.map(({{ x0 }}) => x0).join()"


def test_a_firing_is_marked_at_its_step_and_leads_to_the_alert(page, team):
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    make_rule(team, name="entropy above 5", metric="entropy", threshold=5)
    story = Story(queue_run(team))
    story.start()
    story.take_steps(5)
    run = f"/alpha/runs/{story.run.pk}/"
    page.goto(f"{run}metrics/?smooth=0")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    card = page.locator("#chart-entropy")
    card.scroll_into_view_if_needed()
    wait_until(page, f"{MARKS.format('entropy')} === ''")
    place = card.bounding_box()

    story.take_steps(1, entropy=9)
    story.take_steps(2)

    wait_until(page, f"{MARKS.format('entropy')} === '6'")
    assert card.bounding_box() == place
    assert page.evaluate(MARKS.format("grad_norm")) == ""
    ends = page.evaluate(f"{SHOW.format('entropy')}._fullLayout.xaxis.range")
    assert ends == [0, story.run.num_steps]
    mark = card.locator(".annotation-text-g")
    mark.hover()
    expect(card.locator(".hoverlayer")).to_contain_text("entropy above 5, step 6")
    alert = Alert.objects.get()
    card.locator("[data-menu] summary").click()
    link = card.get_by_role("link", name="entropy above 5, step 6")
    expect(link).to_have_attribute("href", f"/alpha/alerts/{alert.pk}/")
    assert findings(page) == []
    page.keyboard.press("Escape")

    page.locator(".chart-gear").click()
    with page.expect_response("**/runs/charts"):
        page.get_by_label("Alerts", exact=True).uncheck()
    page.keyboard.press("Escape")
    card.scroll_into_view_if_needed()
    wait_until(page, f"{MARKS.format('entropy')} === ''")
    assert "alerts=off" in page.url
    page.locator(".chart-gear").click()
    with page.expect_response("**/runs/charts"):
        page.get_by_label("Alerts", exact=True).check()

    page.goto(f"{run}metrics/?q=entropy&smooth=0")
    wait_until(page, f"{MARKS.format('entropy')} === '6'")
    page.locator("#chart-entropy .annotation-text-g").click()
    page.wait_for_url(f"**/alpha/alerts/{alert.pk}/")
    assert problems == []
