"""Real sockets on a real run, too few for a load: what they hold is complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard.accounts.models import Team, User
from tests.load.stack import Crowd, Show
from tests.load.stage import read_truth, set_scene
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.slow  # 600 paced steps each
PACE = Pace(num_steps=600, events_per_second=150)


@pytest.fixture
def show(
    app_environment: dict[str, str], team: Team, alice: User, tmp_path: Path
) -> Iterator[Show]:
    """A run that waits to be told to go on."""
    scene = set_scene(team, alice, optim={"num_steps": PACE.num_steps})
    show = Show(scene, PACE, env=app_environment, log=tmp_path / "supervisor.log")
    show.wait_until_it_speaks()
    yield show
    show.close()


@pytest.fixture
def crowd(
    show: Show, live_app: str, app_environment: dict[str, str], tmp_path: Path
) -> Iterator[Crowd]:
    crowd = Crowd(
        live_app, show.scene, env=app_environment, log=tmp_path / "viewers.log"
    )
    yield crowd
    crowd.close()


@pytest.fixture
def find_faults(show: Show, crowd: Crowd, tmp_path: Path) -> Callable[[str], list[str]]:
    """What a group's viewers lack, or hold otherwise, once the run has ended."""

    def find(group: str) -> list[str]:
        show.wait_for_the_end()
        truth = tmp_path / "truth.json"
        truth.write_text(json.dumps(read_truth(show.scene.run_id)))
        faults: list[str] = crowd.ask("finish", group=group, truth=str(truth))["faults"]
        return faults

    return find


def test_viewers_end_with_what_the_database_holds(
    show: Show, crowd: Crowd, find_faults: Callable[[str], list[str]]
) -> None:
    crowd.ask("come", group="early", count=4)
    show.go()
    crowd.ask("see", group="early", count=100)
    crowd.ask("come", group="late", count=2)

    assert find_faults("early") == []
    assert find_faults("late") == []
    assert len(read_truth(show.scene.run_id)["steps"]) == PACE.num_steps


def test_viewers_that_lose_their_connection_are_current_again(
    show: Show, crowd: Crowd, find_faults: Callable[[str], list[str]]
) -> None:
    crowd.ask("come", group="steady", count=1)
    crowd.ask("come", group="viewers", count=6)
    show.go()
    crowd.ask("see", group="viewers", count=50)

    delays = crowd.ask("reconnect", group="viewers", over=0.5)["delays"]

    assert len(delays) == 6  # each of them, or it would not have answered
    assert find_faults("viewers") == []


def test_a_reader_that_stalled_catches_up_and_hinders_nobody(
    show: Show, crowd: Crowd, find_faults: Callable[[str], list[str]]
) -> None:
    crowd.ask("come", group="ordinary", count=2)
    crowd.ask("come", group="stalled", count=3, is_small=True)
    crowd.ask("stall", group="stalled")
    show.go()
    crowd.ask("see", group="ordinary", count=300)

    behind = crowd.ask("read_on", group="stalled")["behind"]

    assert min(behind) > 0
    assert find_faults("ordinary") == []
    assert find_faults("stalled") == []
