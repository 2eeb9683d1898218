"""The queue prioritised, held and released, by keyboard, in a real browser."""

import pytest
from playwright.sync_api import expect

from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run
from dashboard.supervision.workers import register
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.runs.stories import Story, queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_queue_is_prioritised_held_and_released(page, team):
    register("training@here", num_slots=1)
    training = Story(queue_run(team, num_steps=11), worker="training@here")
    training.start()
    training.take_steps(1, **{"time/step": 60.0})
    runs = [queue_run(team, name=f"run-{name}", num_steps=20) for name in "abc"]
    for _ in range(2):
        queue_run(Team.objects.get_or_create(slug="beta", name="Beta")[0], num_steps=20)
    big = queue_run(team, name="run-big")
    big.config["model"] |= {"device": "cuda"}
    big.save()
    page.goto("/alpha/compute/")
    expect(page.locator(".queue-run").first).to_contain_text("≈ 30 min")
    expect(page.locator(".queue-lack")).to_contain_text("a GPU")
    assert findings_in_each_view(page) == []

    page.get_by_role("button", name="Hold run-a").press("Enter")
    held = page.locator(".queue-run", has_text="run-a")
    expect(held).to_contain_text("On hold")
    page.get_by_role("button", name="Release run-a").click()
    expect(held).not_to_contain_text("On hold")

    page.get_by_label("Priority of run-b", exact=True).select_option("high")
    expect(page.locator(".queue-name").first).to_have_text("run-b")
    assert Run.objects.get(id=runs[1].id).priority == Priority.HIGH

    page.get_by_role("link", name="run-a").click()
    expect(page.locator("[data-run-notice]")).to_contain_text("worker is busy")
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("[data-run-notice]")).to_contain_text("On hold")
    expect(page.get_by_role("button", name="Release")).to_be_visible()
    assert findings_in_each_view(page) == []
