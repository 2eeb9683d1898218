"""The workers page as a reader with any screen, theme or aid finds it."""

from dataclasses import asdict
from pathlib import Path

import pytest

from dashboard.rewards.trial import describe
from dashboard.supervision.workers import register, store_facts
from tests.browser.accessibility import findings_in_each_view
from trainer.rewards.sandbox.slot import SandboxStatus

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def data_folder(settings) -> Path:
    """The web process's own: it is kept from test to test."""
    return Path(settings.COHORT_DATA)


def test_it_is_accessible_and_does_not_scroll_sideways(page, team):
    lacking = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    register("training@gpu-1", num_slots=1)
    store_facts("training@gpu-1", sandbox=asdict(describe(lacking)))
    page.goto("/alpha/workers")

    found = findings_in_each_view(page)

    assert page.get_by_text("A: no bwrap").is_visible()
    assert not found
