from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pytest_django.fixtures import Settings

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.accounts.models import Team, User
    from dashboard.runs.models import Run
    from tests.dashboard.supervision.factories import Launcher


@pytest.fixture(autouse=True)
def data_folder(settings: Settings, tmp_path: Path) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def launch(team: Team, alice: User) -> Launcher:
    from tests.dashboard.supervision.factories import Launcher

    return Launcher(team, alice)


@pytest.fixture
def run(launch: Launcher) -> Run:
    return launch()
