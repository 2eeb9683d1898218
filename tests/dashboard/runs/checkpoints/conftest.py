from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pytest_django.fixtures import Settings

if TYPE_CHECKING:
    from dashboard.accounts.models import Team
    from dashboard.runs.models import Run
    from tests.dashboard.runs.checkpoints.saved import Saving


@pytest.fixture(autouse=True)
def data_folder(settings: Settings, tmp_path: Path) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    return tmp_path / "data"


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
