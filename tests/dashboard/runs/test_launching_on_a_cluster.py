"""A run on its team's Ray cluster: the form, its estimate, what it warns of."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models.functions import Now

from dashboard.runs.models import Run, RunEvent, Step
from dashboard.runs.progress import describe_progress
from dashboard.runs.queue.estimates import past_paces
from dashboard.supervision.models import Cluster
from dashboard.supervision.workers import register
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields
from trainer.config import RunConfig

ADDRESS = "ray-head:6379"
SIXTEEN = {
    "distributed.where": "ray",
    "distributed.num_nodes": "2",
    "distributed.num_processes": "8",
}


@pytest.fixture
def cluster(settings, team) -> None:
    settings.COHORT_RAY_ADDRESS = ADDRESS
    register("training@gpu-1", num_slots=1)


@pytest.fixture
def filled(team) -> dict[str, Any]:
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
        "model.tf32": "on",
        "data.num_eval_rows": "0",
    }


def read(*free: float, error: str | None = None) -> None:
    """Nodes with 8 GPUs each, of which so many are free."""
    nodes = [
        {"name": f"n{n}", "gpu_kind": "H100", "gpus": 8, "gpus_free": each, "cpus": 9}
        for n, each in enumerate(free)
    ]
    facts = {"error": error, "ray_version": "2.60.0", "nodes": nodes}
    Cluster.objects.update_or_create(
        address=ADDRESS, defaults={"facts": facts, "read_at": Now()}
    )


def test_the_form_asks_where_only_with_a_cluster(alice_client, team, filled, settings):
    before = alice_client.get("/alpha/runs/new").text
    settings.COHORT_RAY_ADDRESS = ADDRESS
    after = alice_client.get("/alpha/runs/new").text

    for name in SIXTEEN:
        setting = f'data-setting="{name}"'
        assert before.count(setting) == (name == "distributed.num_processes"), name
        assert after.count(setting) == 1, name
    values = {name: _fields(before)[name] for name in SIXTEEN}
    assert values == {**dict.fromkeys(SIXTEEN, "1"), "distributed.where": "machine"}
    assert values == {name: _fields(after)[name] for name in SIXTEEN}


@pytest.mark.parametrize(
    ("free", "warns", "word"),
    [
        ((8.0, 8.0), False, "16 of 16 GPUs"),
        ((8.0, 0.5), False, "8 of 16 GPUs"),
        ((8.0,), True, "8 of 8 GPUs"),
    ],
)
def test_the_estimate_says_whether_the_cluster_has_the_gpus_now(
    free, warns, word, cluster, alice_client, filled
):
    read(*free)

    answer = alice_client.post("/alpha/runs/new/summary", filled | SIXTEEN)

    summary = answer.context["summary"]
    assert any(word in part for part in summary.line)
    assert any(ADDRESS in each for each in summary.warnings) == warns
    said = [each for each in (*summary.hints, *summary.warnings) if ADDRESS in each]
    assert len(said) == (word[:2] != "16")  # once


def test_a_run_on_one_machine_hears_nothing_of_a_cluster(cluster, alice_client, filled):
    read(0.0)
    summary = alice_client.post("/alpha/runs/new/summary", filled).context["summary"]

    assert not any("GPUs" in part for part in (*summary.line, *summary.warnings))


def test_a_cluster_that_is_not_there_is_confirmed_first(
    cluster, alice_client, filled, settings
):
    read(error="It cannot be reached.")
    url = "/alpha/runs/new"

    refused = alice_client.post(url, filled | SIXTEEN)
    settings.COHORT_RAY_ADDRESS = ""
    without = alice_client.post(url, filled | SIXTEEN)

    assert not Run.objects.exists()
    assert "It cannot be reached." in refused.text
    assert "COHORT_RAY_ADDRESS" in without.text
    assert 'data-setting="distributed.where"' in without.text


def test_the_api_takes_the_same_settings_and_the_queue_names_the_cluster(
    cluster, alice, team, filled
):
    read(8.0, 0.0)
    program = Program(make_token(alice, "write"))
    toml = '[distributed]\nwhere = "ray"\nnum_nodes = 2\nnum_processes = 8\n'
    body = {
        "dataset_version_id": filled["dataset"],
        "recipe_version_id": filled["recipe"],
        "model": "org/model",
        "settings": {"data.num_eval_rows": 0},
        "confirm": True,
    }

    for number, more in enumerate(({"toml": toml}, {"settings": SIXTEEN})):
        more = {"settings": body["settings"] | more.get("settings", {}), **more}
        made = program.post("/launches", body | more | {"name": f"r{number}"})
        assert made.status_code == 201, made.text

    for run in Run.objects.all():
        distributed = RunConfig.model_validate(run.config).distributed
        assert (distributed.where, distributed.num_ranks) == ("ray", 16)
        assert ADDRESS in str(describe_progress(run))
    items = program.get("/queue").json()["items"]
    assert [ADDRESS in item["sentence"] for item in items] == [True, True]


def test_step_time_is_scaled_from_the_nearest_number_of_ranks(team, filled):
    def past(num_processes: int, seconds: float) -> None:
        run = make_run(
            team,
            f"past-{num_processes}",
            dataset=team.datasets.get().versions.get(),
            recipe=team.recipes.get().versions.get(),
            config=make_config(distributed={"num_processes": num_processes}),
            metric_names=["time/step"],
            last_step=1,
        )
        common = {"run": run, "attempt": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}
        body = {"device": "H100"}
        RunEvent.objects.create(
            **common, seq=1, line=1, type="run_started", step=0, body=body
        )
        Step.objects.create(**common, step=1, seq=2, values=[seconds])

    past(1, 100.0)
    past(8, 20.0)
    ranks = {"where": "ray", "num_nodes": 2, "num_processes": 8}

    (pace,) = past_paces(team, RunConfig.model_validate(make_config(distributed=ranks)))

    assert (pace.step_seconds, pace.num_ranks, pace.num_runs) == (10.0, 8, 1)
    alone = past_paces(team, RunConfig.model_validate(make_config()))
    assert [(each.step_seconds, each.num_ranks) for each in alone] == [(100.0, None)]
