"""One sandbox per level, shared by the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.trainer.rewards.sandbox.calling import Caller
from trainer.rewards.sandbox.levels import LEVELS, obstacle

# B each time: on A bubblewrap would hide a hole in the filters that both have. A now
# and then, and each time by what test_probe tries.
CAN_TRY = [level for level in reversed(LEVELS) if obstacle(level) is None]
CAN_TRY = CAN_TRY or [*LEVELS[:1]]


@pytest.fixture(
    scope="module",
    params=[
        *CAN_TRY[:1],
        *(pytest.param(level, marks=pytest.mark.slow) for level in CAN_TRY[1:]),
    ],
)
def caller(request) -> Iterator[Caller]:
    """On each level that this machine can try."""
    reason = obstacle(request.param)
    if reason is not None:
        pytest.skip(f"level {request.param}: {reason}")
    caller = Caller(request.param)
    yield caller
    caller.slot.end()
