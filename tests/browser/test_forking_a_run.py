"""A run is forked from a checkpoint, with another learning rate, in a real browser."""

import hashlib

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Checkpoint, Run
from dashboard.runs.queries import run_directory
from tests.browser.accessibility import findings
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.stories import Story
from tests.dashboard.supervision.checkpoints import save

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_forks_chart_continues_its_parents(page, team):
    parent = make_run(
        team,
        "amber-otter",
        dataset=make_dataset(team),
        recipe=make_recipe(team),
        config=make_config(optim={"num_steps": 40}),
    )
    story = Story(parent)
    story.start()
    story.take_steps(20)
    story.save_checkpoint()
    path = save(run_directory(parent.id), 20)
    digest = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    Checkpoint.objects.filter(run=parent).update(sha256=digest)

    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/alpha/runs/{parent.id}/checkpoints/")
    assert findings(page) == []
    page.get_by_role("link", name="Fork from the best").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("amber-otter")
    expect(page.get_by_label("Model", exact=True)).not_to_be_editable()
    expect(page.locator("#launch-summary")).to_contain_text("21 to 40")
    page.get_by_label("Learning rate", exact=True).fill("5e-6")
    assert findings(page) == []
    page.get_by_role("button", name="Launch").click()

    expect(page.locator(".run-lineage")).to_contain_text("amber-otter")
    child = Run.objects.get(forked_from=parent)
    assert child.config["optim"]["learning_rate"] == 5e-6
    later = Story(child)
    later.step = 20
    later.start()
    later.take_steps(5)
    expect(page.locator("[data-run-step]")).to_have_text("25")
    chart = page.locator(".chart").first
    expect(chart.locator("[data-legend] button").first).to_contain_text(
        "amber-otter, ", timeout=15_000
    )
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Cancel now").click()
    expect(page.locator("#cancel-run")).to_be_visible()
    assert findings(page) == []
    page.get_by_role("button", name="Keep running").click()

    page.goto(f"/alpha/runs/{child.id}/lineage/")
    expect(page.locator(".lineage [aria-current]")).to_contain_text("this run")
    assert findings(page) == []
