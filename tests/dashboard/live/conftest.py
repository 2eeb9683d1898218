from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dashboard.accounts.models import Team
    from dashboard.runs.models import Run


@pytest.fixture
def run(team: Team) -> Run:
    from tests.dashboard.runs.stories import queue_run

    return queue_run(team)
