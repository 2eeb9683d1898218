"""The numbers of /metrics about open pages, by pages."""

import pytest

from tests.dashboard.live.watching import in_thread, watch
from tests.dashboard.operations.scraping import Samples, reported

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_is_known"),
]


async def now() -> Samples:
    reported_now: Samples = await in_thread(reported)()
    return reported_now


async def test_an_open_page_and_its_frames_are_counted_while_it_is_open(run, alice):
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
