from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboard.runs.models import Run
    from tests.dashboard.runs.checkpoints.saved import Saving


@pytest.fixture(autouse=True)
def own_folder(data_folder) -> None:
    """Each test has its own COHORT_DATA."""


@pytest.fixture
def run(team) -> Run:
    from tests.dashboard.runs.stories import queue_run

    return queue_run(team)


@pytest.fixture
def saving(run) -> Saving:
    """A run that trains, and saves what a trainer saves."""
    from tests.dashboard.runs.checkpoints.saved import Saving

    story = Saving(run)
    story.start()
    return story
