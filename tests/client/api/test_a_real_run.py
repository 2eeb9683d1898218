"""`cohort runs launch` with a real worker, watched to its end."""

import json
from collections.abc import Iterator

import pytest

from tests.client.api.processes import Cohort
from tests.dashboard.completions.factories import make_recipe
from tests.faults.tiny import RECIPE, save_model
from tests.faults.workers import Worker

pytestmark = pytest.mark.slow
STATES = ("queued", "starting", "running", "finished")
SETTINGS = {
    "optim.num_steps": 4,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 8,
    "model.device": "cpu",
    "model.dtype": "float32",
    "data.num_eval_rows": 2,
    "evaluation.every_steps": 2,
    "evaluation.samples_per_prompt": 1,
    "distributed.num_threads": 1,
}


@pytest.fixture
def worker(app_environment, tmp_path) -> Iterator[Worker]:
    process = Worker("cli", env=app_environment, log=tmp_path / "worker.log")
    yield process
    process.terminate()


def test_a_run_is_launched_watched_and_shown(
    live_app, token, team, worker, rows, tmp_path
):
    cohort = Cohort(live_app, token, tmp_path)
    make_recipe(team, rules=RECIPE["rules"])
    save_model(tmp_path / "model")
    cohort.json("datasets", "push", rows)

    command = ["runs", "launch", "--model", tmp_path / "model", "--yes", "--watch"]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    watched = cohort(*command, "--json")

    assert watched.returncode == 0, watched.stdout + worker.log.read_text()
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    states = [one["state"] for one in events if one["event"] == "state"]
    # Between two requests, a short run may pass through a state.
    assert states == [state for state in STATES if state in states]
    assert states[-1] == "finished"
    points = [one for one in events if one["event"] == "step"]
    trained = [one["step"] for one in points if "reward/mean" in one["values"]]
    assert trained == [1, 2, 3, 4]
    assert any("eval/heldout/mean" in one["values"] for one in points)
    run = events[0]["run"]
    groups = cohort.json("groups", "show", run, 4)
    assert len(groups) == 2
    group = cohort.json("groups", "show", run, 4, groups[0]["prompt_index"])[0]
    assert len(group["completions"]) == 4
    assert cohort("runs", "watch", run).returncode == 0
