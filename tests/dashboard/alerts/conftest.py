from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.runs.models import Run


@pytest.fixture(autouse=True)
def own_folder(data_folder) -> None:
    """Each test has its own COHORT_DATA."""


@pytest.fixture
def run(launch) -> Run:
    return launch()
