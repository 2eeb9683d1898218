"""An empty report for /readyz and /metrics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.operations import health_checks


def clear_report() -> None:
    health_checks._last = None


@pytest.fixture
def nothing_is_known(settings) -> Iterator[None]:
    Path(settings.COHORT_DATA).mkdir(parents=True, exist_ok=True)
    clear_report()
    yield
    clear_report()
