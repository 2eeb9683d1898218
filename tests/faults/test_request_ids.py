"""A request id in the log lines of web, worker and trainer."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dashboard.api.models import Scope
from dashboard.runs.models import Run, RunState
from tests.dashboard.api.asking import make_token
from tests.faults.workers import Worker, wait_for

pytestmark = pytest.mark.faults
REQUEST_ID = "one-request-of-a-test-1"


def lines_of(log: Path) -> list[dict[str, Any]]:
    """All except the banner of a worker."""
    return [json.loads(t) for t in log.read_text().split("\n") if t.startswith("{")]


def resume(address: str, run: Run, token: str) -> str:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{address}/api/v1/runs/{run.pk}/resume",
        method="POST",
        headers={"Authorization": f"Bearer {token}", "X-Request-ID": REQUEST_ID},
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310 - loopback
        return str(response.headers["X-Request-ID"])


def test_a_request_id_reaches_the_trainer(
    app_environment, web_processes, launch_tiny, alice, data_folder, tmp_path
):
    env = {**app_environment, "COHORT_LOG_FORMAT": "json"}
    run = launch_tiny(num_steps=2)
    Run.objects.filter(pk=run.pk).update(state=RunState.PAUSED)
    token = make_token(alice, Scope.WRITE)
    address = web_processes.serve(env)
    worker = Worker("one", env=env, log=tmp_path / "worker.log")
    try:
        request_id = resume(address, run, token)
        wait_for(
            lambda: Run.objects.filter(pk=run.pk, state=RunState.FINISHED).first(),
            what="the run finishes",
        )
    finally:
        worker.terminate()
        web_processes.stop()

    assert request_id == REQUEST_ID
    web = lines_of(web_processes.log)
    [acted] = [line for line in web if line.get("request_id") == REQUEST_ID]
    assert acted["process"] == "web"
    assert (acted["method"], acted["run"], acted["user"]) == ("POST", run.pk, alice.pk)
    rest = lines_of(worker.log)
    supervised = [line for line in rest if line["logger"].endswith("event_log")]
    values = [line for line in rest if line["process"] == "trainer"]
    assert {line["request_id"] for line in supervised + values} == {REQUEST_ID}
    assert {line["run"] for line in supervised + values} == {run.pk}
    assert {line["team"] for line in supervised + values} == {run.team.slug}
    assert {line["process"] for line in supervised} == {"one worker"}
    assert {line["task"] for line in supervised} == {"training.work"}
    of_steps = [line for line in values if line["message"].startswith("step ")]
    assert [line["step"] for line in of_steps] == [1, 2]
    assert values[-1]["message"] == "finished"
    attempt = data_folder / "runs" / str(run.pk) / "epochs" / "1"
    text = (attempt / "trainer.log").read_text()
    assert "step 2/2" in text  # people read text
    assert REQUEST_ID not in text
    # The message that woke the worker had the id too, for whichever run.
    woken = [line for line in rest if line.get("task") == "training.work"]
    assert REQUEST_ID in {line.get("request_id") for line in woken}
    assert token not in web_processes.log.read_text() + worker.log.read_text()
