"""Pinning, publishing and trying a checkpoint, in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.analysis.probes.models import Probe
from dashboard.runs.models import Checkpoint, PublishedModel
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.analysis.probes.trained import train_checkpoint
from tests.dashboard.jobs.working import do, take
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.dashboard.runs.stories import queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def data_folder(settings) -> Path:
    """The web process's own: it is kept from test to test."""
    return Path(settings.COHORT_DATA)


def test_a_checkpoint_is_pinned_and_published(page, team):
    saving = Saving(queue_run(team))
    saving.start()
    for score in (0.2, 0.6):
        saving.save(score=score)
    page.goto(f"/alpha/runs/{saving.run.pk}/checkpoints/")
    expect(page.locator("#checkpoints-total")).to_contain_text("2 of 2 kept")

    # Another one is saved: the list shows it without a reload.
    saving.save(score=0.4)
    expect(page.locator("#checkpoints-total")).to_contain_text("3 of 3 kept")

    page.get_by_label("More for step 1").click()
    page.get_by_role("button", name="Pin step 1", exact=True).click()
    page.get_by_label("More for step 1").click()
    expect(page.get_by_role("button", name="Unpin step 1")).to_be_visible()

    page.get_by_role("button", name="Publish the best").click()
    page.locator("#publish-name").fill("Sums, second")
    page.get_by_role("button", name="Publish the model").click()
    expect(page.get_by_text("Published Sums, second")).to_be_visible()
    assert findings_in_each_view(page) == []

    assert Checkpoint.objects.get(step=1).pinned_at is not None
    assert PublishedModel.objects.get().name == "Sums, second"


def test_a_checkpoint_is_tried_with_its_base_model(page, team, tmp_path):
    saving = Saving(queue_run(team))
    saving.start()
    train_checkpoint(saving, tmp_path)
    page.goto(f"/alpha/runs/{saving.run.pk}/checkpoints/")
    page.get_by_role("link", name="Try step 1").click()
    page.get_by_role("link", name="Random prompt").click()
    expect(page.locator("#try-row")).not_to_contain_text("random")
    page.get_by_label("Own prompt").fill("1+1=")
    page.get_by_text("Settings:").click()
    page.get_by_label("Completions per model").fill("3")
    assert findings_in_each_view(page) == []
    page.get_by_role("button", name="Sample", exact=True).click()
    expect(page.get_by_text("Waiting:")).to_be_visible()

    do(take("probe"))

    for title in ("Checkpoint", "Base model"):
        side = page.get_by_role("region", name=title)
        expect(side.get_by_label(f"of {title}")).to_have_count(3)
        expect(side.locator("[data-mean-reward]")).to_be_visible()
    assert findings_in_each_view(page) == []
    assert Probe.objects.get().state == "done"

    expect(page.get_by_label("Own prompt")).to_have_value("")
    page.get_by_text("Settings:").click()
    expect(page.get_by_label("Completions per model")).to_have_value("3")
    page.set_viewport_size({"width": 390, "height": 844})
    own, base = (page.get_by_role("region", name=n) for n in ("Checkpoint", "Base"))
    expect(own).to_be_visible()
    expect(base).to_be_hidden()
    page.get_by_role("radio", name="Base model").check()
    expect(base).to_be_visible()
    expect(own).to_be_hidden()
