"""Pages come and go for as long as the process lives, and leave nothing in it."""

from __future__ import annotations

import gc

import pytest

from dashboard.accounts.models import Team, User
from dashboard.live.bell import _bells
from dashboard.runs.models import Run
from dashboard.runs.stream.consumers import RunConsumer
from tests.dashboard.live.watching import refusal, watch
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(team: Team) -> Run:
    return queue_run(team)


async def test_a_page_that_left_is_forgotten(
    alice: User, charlie: User, run: Run
) -> None:
    for _ in range(2):
        await visit(run, alice)
        await refusal(run.id, charlie)
    before = num_consumers()
    for _ in range(5):
        await visit(run, alice)
        await refusal(run.id, charlie)

    assert num_consumers() <= before
    assert f"run-{run.id}" not in _bells


def num_consumers() -> int:
    gc.collect()
    return sum(isinstance(one, RunConsumer) for one in gc.get_objects())


async def visit(run: Run, user: User) -> None:
    async with watch(run.id, user) as viewer:
        await viewer.next_frame()
