"""Watching a run through outages and resumes."""

import pytest

from cohort import Unreachable
from cohort.api import run as watching
from tests.client.api.scripted import Scripted
from tests.client.api.test_on_a_terminal import points, run

UNAVAILABLE = (503, {}, b"")


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(watching.time, "sleep", seconds.append)
    return seconds


def watched(server: Scripted, **options: int) -> list[tuple[int, float]]:
    client = server.client(retries=0)
    updates = watching.follow(client, 7, every_seconds=60, **options)
    points = [point for _, new in updates for point in new]
    return [(point.step, point.values["reward/mean"]) for point in points]


def test_it_waits_through_an_outage(waits):
    answers = [run("running", 1), points(_1=0.1), UNAVAILABLE, UNAVAILABLE]
    end = [run("finished", 2), points(_1=0.1, _2=0.2)]
    with Scripted(*answers, *end) as server:
        assert watched(server) == [(1, 0.1), (2, 0.2)]

    assert waits[0] == 60
    assert len(waits) == 3


def test_it_does_not_wait_for_a_server_that_never_responded(waits):
    with Scripted(UNAVAILABLE) as server, pytest.raises(Unreachable):
        watched(server)

    assert waits == []


def test_a_step_that_a_resumed_run_repeats_is_yielded_once():
    answers = [run("running", 3), points(_1=0.1, _2=0.2, _3=0.3)]
    back = [run("running", 2), points()]
    end = [run("finished", 4), points(_3=0.31, _4=0.4)]
    with Scripted(*answers, *back, *end) as server:
        seen = watched(server)

    assert seen == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_long_run_is_read_page_by_page(waits):
    status, headers, first = points(_3=0.3, _4=0.4)
    more = (status, headers, first | {"next_cursor": "more"})
    answers = [run("finished", 5), more, run("finished", 5), points(_4=0.4, _5=0.5)]
    with Scripted(*answers) as server:
        seen = watched(server, from_step=3)

    assert seen == [(3, 0.3), (4, 0.4), (5, 0.5)]
    assert waits == []
    assert "first_step=3" in server.requests[1][0]
    assert "first_step=4" in server.requests[3][0]
