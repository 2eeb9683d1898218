"""Pinning, publishing and asking a checkpoint, in a real browser."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db.models.functions import Now
from playwright.sync_api import Page, expect
from pytest_django.fixtures import Settings

from dashboard.accounts.models import Team
from dashboard.probes.chat.news import change
from dashboard.probes.models import Chat
from dashboard.runs.models import Checkpoint, PublishedModel
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.checkpoints.saved import Saving
from tests.dashboard.runs.stories import queue_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def data_folder(settings: Settings) -> Path:
    """The web process's own: it is kept from test to test."""
    return Path(settings.COHORT_DATA)


def test_a_checkpoint_is_pinned_published_and_asked(page: Page, team: Team) -> None:
    saving = Saving(queue_run(team))
    saving.start()
    for score in (0.2, 0.6):
        saving.save(score=score)
    page.goto(f"/alpha/runs/{saving.run.pk}/checkpoints/")
    expect(page.locator("#checkpoints-total")).to_contain_text("2 of 2 kept")

    # Another one is saved: the list shows it without a reload.
    saving.save(score=0.4)
    expect(page.locator("#checkpoints-total")).to_contain_text("3 of 3 kept")

    page.get_by_role("button", name="Pin step 1", exact=True).click()
    expect(page.get_by_text("is pinned: it is never deleted")).to_be_visible()
    expect(page.get_by_role("button", name="Unpin step 1")).to_be_visible()

    page.get_by_role("button", name="Publish step 2").click()
    page.locator("#publish-name").fill("Sums, second")
    page.get_by_role("button", name="Publish the model").click()
    expect(page.get_by_text("Sums, second is published")).to_be_visible()
    assert findings_in_each_view(page) == []

    page.get_by_role("link", name="Chat with step 2").click()
    page.get_by_label("Or your own prompt").fill("What is 1 + 1?")
    page.get_by_role("button", name="Ask both").click()
    expect(page.locator("#chat-answers")).to_contain_text("No training worker")
    assert findings_in_each_view(page) == []
    page.get_by_role("button", name="Stop", exact=True).last.click()
    expect(page.locator("#chat-answers")).to_contain_text("Not answered.")

    assert Checkpoint.objects.get(step=1).pinned_at is not None
    assert PublishedModel.objects.get().name == "Sums, second"
    assert Chat.objects.get().state == "stopped"


def test_answers_grow_as_they_are_written_and_are_kept(page: Page, team: Team) -> None:
    saving = Saving(queue_run(team))
    saving.start()
    saving.save()
    page.goto(f"/alpha/runs/{saving.run.pk}/chat/")
    page.get_by_label("Or your own prompt").fill("What is 1 + 1?")
    page.get_by_role("button", name="Ask both").click()
    expect(page.locator("#chat-answers")).to_contain_text("No training worker")
    chat = Chat.objects.get()

    # As a desk does it.
    every = Chat.objects.all()
    held = {"claim": uuid4(), "lease_until": Now() + timedelta(hours=1)}
    change(chat.pk, every, state="running", **held)
    expect(page.locator("#chat-answers")).to_contain_text("Loading the models.")
    own = page.locator('[data-chat-text="0-0"]')
    change(chat.pk, every, answers=_answers("It", None))
    expect(own).to_have_text("It")
    page.evaluate("window.isSame = true")
    change(chat.pk, every, answers=_answers("It is <b>2", "Ba"))
    expect(own).to_have_text("It is <b>2")
    expect(page.locator('[data-chat-text="1-0"]')).to_have_text("Ba")
    assert findings_in_each_view(page) == []
    assert page.evaluate("window.isSame")  # nothing was reloaded

    page.get_by_role("button", name="Stop", exact=True).last.click()
    expect(page.locator("#chat-answers")).to_contain_text("Stopping.")
    change(chat.pk, every, state="stopped", finished_at=Now())
    expect(page.locator("#chat-answers")).to_contain_text("Stopped by hand.")
    expect(own).to_have_text("It is <b>2")
    expect(page.get_by_text("stopped there: no score").first).to_be_visible()
    expect(page.get_by_label("Reply to both")).to_be_visible()


def _answers(*texts: str | None) -> list[dict[str, object]]:
    return [
        {
            "completions": [
                text and {"text": text, "num_tokens": len(text), "end_reason": None}
            ]
        }
        for text in texts
    ]
