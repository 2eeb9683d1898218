"""One sandbox per level, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.rewards.sandbox.asking import Asker
from trainer.rewards.sandbox.levels import LEVELS, obstacle


@pytest.fixture(scope="module", params=LEVELS)
def asker(request: pytest.FixtureRequest) -> Iterator[Asker]:
    """On each level that this machine can try."""
    reason = obstacle(request.param)
    if reason is not None:
        pytest.skip(f"level {request.param}: {reason}")
    asker = Asker(request.param)
    yield asker
    asker.slot.end()
