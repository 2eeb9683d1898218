"""The web process ends by SIGTERM or kill -9 while viewers watch a run."""

import json
from collections.abc import Iterator

import pytest

from tests.fixtures_app import WebProcesses
from tests.load.stack import Crowd, Show
from tests.load.stage import read_truth, set_scene
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.faults
BACK_SECONDS = 20  # on an idle machine, as in soak tests


@pytest.fixture
def num_viewers(request) -> int:
    return 200 if request.config.getoption("--soak") else 40


@pytest.fixture
def back_seconds(request) -> int:
    is_alone = request.config.getoption("--soak")
    return BACK_SECONDS if is_alone else 3 * BACK_SECONDS


@pytest.fixture
def show(app_environment, team, alice, tmp_path) -> Iterator[Show]:
    """A run that trains throughout."""
    pace = Pace(num_steps=900, events_per_second=50)
    scene = set_scene(team, alice, optim={"num_steps": pace.num_steps})
    show = Show(scene, pace, env=app_environment, log=tmp_path / "supervisor.log")
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


@pytest.mark.parametrize(
    "end", [WebProcesses.kill, WebProcesses.end], ids=["SIGKILL", "SIGTERM"]
)
def test_all_viewers_reconnect_and_miss_nothing(
    show, crowd, web_processes, num_viewers, back_seconds, end, tmp_path
):
    crowd.ask("come", group="viewers", count=num_viewers, over=1)
    show.go()
    crowd.ask("see", group="viewers", count=50)

    crowd.ask("note", group="viewers")
    crowd.begin("come_back", group="viewers")
    end(web_processes)
    web_processes.restart()
    back = crowd.answer()
    show.wait_for_end()

    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(read_truth(show.scene.run_id)))
    held = crowd.ask("finish", group="viewers", truth=str(truth))
    assert back["seconds"] < back_seconds
    assert (held["viewers"], held["faults"]) == (num_viewers, [])
    assert held["connections"] >= 2 * num_viewers
