"""Real sockets on a real run: viewers have complete data."""

import json
from collections.abc import Iterator

import pytest

from tests.load.stack import Crowd, Show
from tests.load.stage import read_truth, set_scene
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.slow  # 600 paced steps
PACE = Pace(num_steps=600, events_per_second=150)


@pytest.fixture
def show(app_environment, team, alice, tmp_path) -> Iterator[Show]:
    """A run that waits for `go`."""
    scene = set_scene(team, alice, optim={"num_steps": PACE.num_steps})
    show = Show(scene, PACE, env=app_environment, log=tmp_path / "supervisor.log")
    show.wait_for_events()
    yield show
    show.close()


@pytest.fixture
def crowd(show, live_app, app_environment, tmp_path) -> Iterator[Crowd]:
    crowd = Crowd(
        live_app, show.scene, env=app_environment, log=tmp_path / "viewers.log"
    )
    yield crowd
    crowd.close()


def test_viewers_end_with_the_data_of_the_database(show, crowd, tmp_path):
    """Viewers of the whole run, late ones, ones that lose their socket or stall."""
    crowd.ask("come", group="early", count=4)
    crowd.ask("come", group="cut", count=6)
    crowd.ask("come", group="stalled", count=3, is_small=True)
    crowd.ask("stall", group="stalled")
    show.go()
    crowd.ask("see", group="early", count=50)
    crowd.ask("come", group="late", count=2)
    delays = crowd.ask("reconnect", group="cut", over=0.5)["delays"]
    crowd.ask("see", group="early", count=250)

    behind = crowd.ask("read_on", group="stalled")["behind"]

    show.wait_for_end()
    held = read_truth(show.scene.run_id)
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(held))
    faults = {
        group: crowd.ask("finish", group=group, truth=str(truth))["faults"]
        for group in ("early", "cut", "stalled", "late")
    }
    assert faults == {"early": [], "cut": [], "stalled": [], "late": []}
    assert len(held["steps"]) == PACE.num_steps
    assert len(delays) == 6  # of each viewer
    assert min(behind) > 0
