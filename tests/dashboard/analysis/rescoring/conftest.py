from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folder(data_folder: Path) -> None:
    """Each test has its own COHORT_DATA."""
