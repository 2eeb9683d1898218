"""A watch outlives what happens to the run and to the server."""

from __future__ import annotations

import pytest

from tests.client.api.scripted import Scripted
from tests.client.api.test_on_a_terminal import points, run
from trainer.client import Unreachable
from trainer.client.api import run as watching

AWAY = (503, {}, b"")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(watching.time, "sleep", found.append)
    return found


def watched(server: Scripted, **options: int) -> list[tuple[int, float]]:
    client = server.client(retries=0)
    looks = watching.follow(client, 7, every_seconds=60, **options)
    seen = [point for _, points in looks for point in points]
    return [(point.step, point.values["reward/mean"]) for point in seen]


def test_a_server_that_goes_away_is_waited_for(waits: list[float]) -> None:
    answers = [run("running", 1), points(_1=0.1), AWAY, AWAY]
    end = [run("finished", 2), points(_1=0.1, _2=0.2)]
    with Scripted(*answers, *end) as server:
        assert watched(server) == [(1, 0.1), (2, 0.2)]

    assert waits[0] == 60
    assert len(waits) == 3


def test_one_that_never_answered_is_not(waits: list[float]) -> None:
    with Scripted(AWAY) as server, pytest.raises(Unreachable):
        watched(server)

    assert waits == []


def test_a_step_that_a_resumed_run_does_again_is_told_once() -> None:
    answers = [run("running", 3), points(_1=0.1, _2=0.2, _3=0.3)]
    back = [run("running", 2), points()]
    end = [run("finished", 4), points(_3=0.31, _4=0.4)]
    with Scripted(*answers, *back, *end) as server:
        seen = watched(server)

    assert seen == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_long_run_comes_by_and_by(waits: list[float]) -> None:
    status, headers, first = points(_3=0.3, _4=0.4)
    more = (status, headers, first | {"next_cursor": "more"})
    answers = [run("finished", 5), more, run("finished", 5), points(_4=0.4, _5=0.5)]
    with Scripted(*answers) as server:
        seen = watched(server, from_step=3)

    assert seen == [(3, 0.3), (4, 0.4), (5, 0.5)]
    assert waits == []
    assert "first_step=3" in server.asked[1][0]
    assert "first_step=4" in server.asked[3][0]
