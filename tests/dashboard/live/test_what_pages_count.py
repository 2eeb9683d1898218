"""The numbers of /metrics about open pages and doorbells, by pages and doorbells."""

from __future__ import annotations

import asyncio

import pytest
from channels.layers import get_channel_layer

from dashboard.accounts.models import Team, User
from dashboard.live import publish
from dashboard.runs.models import Run
from tests.dashboard.live.watching import in_thread, watch
from tests.dashboard.runs.stories import queue_run
from tests.dashboard.upkeep.scraping import Samples, told

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_is_counted"),
]
DROPPED = 'cohort_doorbells_dropped_total{reason="%s"}'


async def now() -> Samples:
    told_now: Samples = await in_thread(told)()
    return told_now


@pytest.fixture
def run(team: Team) -> Run:
    return queue_run(team)


async def test_an_open_page_and_its_frames_are_counted_while_it_is_open(
    run: Run, alice: User
) -> None:
    before = await now()
    async with watch(run.pk, alice) as viewer:
        await viewer.next()
        during = await now()
    after = await now()

    frames, sent = "cohort_socket_frames_total", "cohort_socket_frame_bytes_total"
    sockets = [one["cohort_sockets_open"] for one in (before, during, after)]
    assert sockets == [sockets[0], sockets[0] + 1, sockets[0]]
    assert during[frames] > before.get(frames, 0)
    assert during[sent] - before.get(sent, 0) > 10


async def test_rings_that_a_full_channel_does_not_take_are_counted() -> None:
    layer = get_channel_layer()
    assert layer is not None
    name = await layer.new_channel()
    await layer.group_add("a-group-of-one", name)

    for _ in range(layer.capacity + 3):
        await publish._ring("a-group-of-one", 1)

    await layer.group_discard("a-group-of-one", name)
    assert (await now())[DROPPED % "full"] == 3


async def test_rings_without_redis_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        async def group_send(self, *_: object) -> None:
            raise OSError("nobody listens")

    monkeypatch.setattr(publish, "_silent_until", 0.0)
    monkeypatch.setattr(publish, "get_channel_layer", Gone)

    await asyncio.gather(*(publish._ring("a-group", 1) for _ in range(2)))
    await publish._ring("a-group", 2)  # which is not tried at all

    assert (await now())[DROPPED % "redis"] == 3
