"""A rule is set in seconds, its alert comes over the stream, someone takes it."""

import re

import pytest
from playwright.sync_api import expect

from dashboard.alerts.models import Alert, Rule
from tests.browser.accessibility import findings, looking_with
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = pytest.mark.browser


@looking_with(findings)
def test_a_rule_fires_on_an_open_page_and_is_acknowledged(page, team, look):
    page.goto("/alpha/settings/alert-rules/")
    expect(page.locator("[name=back]")).to_be_hidden()
    page.get_by_label("Metric", exact=True).fill("kl/mean")
    page.get_by_label("Value", exact=True).fill("0.5")
    page.locator("[name=for_steps]").fill("2")
    page.get_by_role("button", name="Add rule").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("kl/mean")
    assert look(page) == []
    rule = Rule.objects.get(built_in="")
    assert (rule.metric, rule.threshold, rule.for_steps) == ("kl/mean", 0.5, 2)

    story = Story(queue_run(team))
    story.start()
    story.take_steps(5)
    page.goto(f"/alpha/runs/{story.run.pk}/")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    line = page.locator("[data-run-alerts]")
    expect(line).to_be_hidden()
    story.score_group()
    story.take_steps(2, **{"kl/mean": 0.9})

    expect(line).to_contain_text("1 alert")
    expect(line.get_by_role("link")).to_have_attribute("title", re.compile("step 7"))
    assert look(page) == []
    line.get_by_role("link").click()
    page.get_by_role("link", name="kl/mean above 0.5").click()
    expect(page.get_by_role("table")).to_contain_text("0.9")
    assert look(page) == []
    page.get_by_role("button", name="Acknowledge").click()

    expect(page.get_by_text("acknowledged", exact=True)).to_be_visible()
    assert Alert.objects.get().state == "acknowledged"
    page.goto(f"/alpha/runs/{story.run.pk}/")
    expect(line).to_be_hidden()
