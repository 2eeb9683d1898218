from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboard.runs.models import Run


@pytest.fixture
def run(team) -> Run:
    from tests.dashboard.runs.stories import queue_run

    return queue_run(team)
