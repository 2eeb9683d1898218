"""What /metrics tells for all processes, from nothing on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from dashboard.meters import shared
from dashboard.upkeep.readiness.report import forget_report


@pytest.fixture
def nothing_is_counted(settings: Settings) -> Iterator[None]:
    """Nor is what /readyz answered last."""
    Path(settings.COHORT_DATA).mkdir(parents=True, exist_ok=True)
    forget_report()
    with shared.connect() as client:
        shared.flush(client)
        client.delete(shared.TOTALS)
    yield
    forget_report()
