"""Runs, and the folder of their files. A folder's conftest has others of its own."""

from pathlib import Path

import pytest

from dashboard.runs.models import Run
from dashboard.supervision.lease import Claim, claim_run
from tests.dashboard.completions.factories import make_run
from tests.dashboard.supervision.factories import Launcher


@pytest.fixture
def data_folder(settings, tmp_path) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    """A run that the tests of a file share."""
    return make_run(shared_team)


@pytest.fixture
def launch(team, alice) -> Launcher:
    return Launcher(team, alice)


@pytest.fixture
def claim(run) -> Claim:
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    return claim
