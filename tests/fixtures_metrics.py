"""An empty report for /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from dashboard.operations.health_checks import clear_report


@pytest.fixture
def nothing_is_known(settings: Settings) -> Iterator[None]:
    Path(settings.COHORT_DATA).mkdir(parents=True, exist_ok=True)
    clear_report()
    yield
    clear_report()
