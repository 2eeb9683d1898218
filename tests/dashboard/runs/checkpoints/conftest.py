from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboard.accounts.models import Team
    from dashboard.runs.models import Run
    from tests.dashboard.runs.checkpoints.saved import Saving


@pytest.fixture(autouse=True)
def own_folder(data_folder: Path) -> None:
    """Each test has its own COHORT_DATA."""


@pytest.fixture
def run(team: Team) -> Run:
    from tests.dashboard.runs.stories import queue_run

    return queue_run(team)


@pytest.fixture
def saving(run: Run) -> Saving:
    """A run that trains, and saves what a trainer saves."""
    from tests.dashboard.runs.checkpoints.saved import Saving

    story = Saving(run)
    story.start()
    return story
