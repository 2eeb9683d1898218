"""What programs start: sweeps, probes, tries, models; and what they ask before."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.api.launches import LaunchIn
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.models import Checkpoint, PublishedModel, Run, Sweep
from tests.dashboard.analysis.probes.factories import (
    completion,
    finish,
    make_version,
    measured,
)
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.dashboard.runs.stories import queue_run
from trainer.events import TurnRecord
from trainer.presets.preset import preset_names

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data_folder")]
RATES = {"setting": "optim.learning_rate", "values": [1e-6, 3e-6]}
SEEDS = {"setting": "seed", "values": ["0..2"]}


@pytest.fixture
def requested(team) -> dict[str, Any]:
    return {
        "dataset_version_id": make_dataset(team).pk,
        "recipe_version_id": make_recipe(team).pk,
        "model": "org/model",
        "name": "brave-otter",
        "settings": {"data.num_eval_rows": 0},
        "confirm": True,
    }


def test_a_sweep_is_launched_whole(program, team, requested):
    body = requested | {"sweep": [RATES, SEEDS]}

    made = program.post("/sweeps", body, Idempotency_Key="k")
    program.post("/sweeps", body, Idempotency_Key="k")

    assert made.status_code == 201, made.text
    names = [f"brave-otter-{n}" for n in range(1, 7)]
    group = Sweep.objects.get()
    assert list(group.runs.order_by("pk").values_list("name", flat=True)) == names
    assert len(made.json()["run_ids"]) == 6
    assert group.runs.count() == 6
    (listed,) = program.get("/sweeps").json()["items"]
    assert listed == made.json()


def test_whitening_is_swept_as_the_switch_that_it_was(program, requested):
    row = {"setting": "advantage.whiten", "values": [True, False, "tokens"]}

    made = program.post("/sweeps", requested | {"sweep": [row]})

    assert made.status_code == 201, made.text
    runs = Sweep.objects.get().runs.order_by("pk")
    whitened = [run.config["advantage"]["whiten"] for run in runs]
    assert whitened == ["completions", "no", "tokens"]


def test_a_sweep_that_cannot_be_launches_nothing(program, requested):
    for sweep, field in [
        ([{"setting": "optim.speed", "values": [1, 2]}], "body.sweep.0.setting"),
        ([RATES, {"setting": "seed", "values": ["1,2"]}], "body.sweep.1.values"),
        ([{"setting": "seed", "values": [1]}], "body.sweep"),
        ([{"setting": "optim.num_steps", "values": [1, -1]}], "body.sweep"),
    ]:
        refused = program.post("/sweeps", requested | {"sweep": sweep})

        assert refused.status_code == 422, sweep
        assert refused.json()["errors"][0]["field"] == field, sweep
        assert not Run.objects.exists(), sweep


def test_a_launch_is_checked_before_it_is_one(program, requested):
    found = program.post("/launches/check", requested).json()
    wrong = program.post("/launches/check", requested | {"model": "no such thing"})

    amounts = {each["title"]: each["value"] for each in found["amounts"]}
    per_step = found["config"]["rollout"]
    num_completions = per_step["prompts_per_step"] * per_step["group_size"]
    assert amounts["Completions per step"] == f"{num_completions:,}"
    again = {"toml": found["toml"], "settings": {}, "name": "x"}
    assert (
        program.post("/launches/check", requested | again).json()["config"]
        == (found["config"])
    )
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "body.model"
    assert not Run.objects.exists()


def test_a_launch_with_rows_that_a_taskset_may_not_play_is_refused_by_the_check(
    program, requested, settings
):
    settings.TASKSETS = frozenset({"words"})
    taskset = {"kind": "verifiers", "taskset": "words", "max_tokens": 9_000}
    environment = {f"environment.{name}": value for name, value in taskset.items()}

    refused = program.post(
        "/launches/check",
        requested | {"settings": requested["settings"] | environment},
    )

    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["field"] == "body.settings.environment.taskset"


def test_the_start_that_the_document_gives_is_one():
    (example,) = LaunchIn.model_fields["start"].examples or [""]

    assert example in preset_names()


def test_a_preset_brings_settings_and_a_reward(program, requested):
    offered = program.get("/presets").json()["presets"]
    (found,) = [one for one in offered if one["key"] == "dr-grpo"]
    recipe = program.post("/recipes", {"name": "Theirs", "spec": found["recipe"]})

    assert found["settings"]["advantage.scale"] == "none"
    assert recipe.status_code == 201, recipe.text


def test_a_recommended_start_is_of_the_model(program, requested):
    requested |= {"start": "recommended", "model": "org/small-135M"}

    run = program.post("/launches", requested).json()

    config = Run.objects.get(pk=run["id"]).config
    assert config["optim"]["learning_rate"] == 3e-5
    assert config["data"]["num_eval_rows"] == 0


def test_a_probe_is_started_read_and_stopped(program, team, requested):
    version = make_version(team)
    body = requested | {"dataset_version_id": version.pk, "positions": [3, 1, 3]}
    body["settings"] |= {"rollout.prompts_per_step": 2}

    made = program.post("/probes", body | {"num_samples": 2})
    beyond = program.post("/probes", body | {"positions": [6]})

    assert made.status_code == 201, made.text
    assert (made.json()["positions"], made.json()["num_samples"]) == ([1, 3], 2)
    assert beyond.json()["errors"][0]["field"] == "body.positions"
    address = f"/probes/{made.json()['id']}"
    assert program.get(address).json()["waiting"]
    assert program.post(f"{address}/stop").json()["done"] is True
    assert program.post(f"{address}/stop").json()["done"] is False
    assert program.get("/probes").json()["total"] == 1


def test_probe_results_can_be_read(program, team):
    from tests.dashboard.analysis.probes.factories import make_probe

    probe = make_probe(team, make_version(team))
    finish(metrics=measured())
    turn = TurnRecord(author="policy", start=0, end=1).model_dump(mode="json")
    for position in probe.positions:
        texts = [
            completion("4", 1.0, turns=[turn]),
            completion("5", None, errors={"right": "no"}),
        ]
        ProbeGroup.objects.create(probe=probe, position=position, completions=texts)

    found = program.get(f"/probes/{probe.pk}").json()
    groups = program.get(f"/probes/{probe.pk}/groups").json()

    assert found["verdict"]["answer"] == "can"
    assert found["metrics"]["pass@1"] == 0.25
    assert [each["position"] for each in groups["items"]] == [1, 3]
    episode, single = groups["items"][0]["completions"]
    assert single["errors"] == {"right": "no"}
    assert (episode["turns"], single["turns"]) == ([turn], [])


@pytest.fixture
def saving(team) -> Saving:
    story = Saving(queue_run(team))
    story.start()
    return story


@pytest.fixture
def saved(saving) -> Checkpoint:
    return saving.save(score=0.5)


def test_a_checkpoint_is_downloaded_pinned_and_published(program, saved):
    address = f"/runs/{saved.run_id}/checkpoints/{saved.name}"

    tar = b"".join(program.get(f"{address}/model.tar").streaming_content)
    pinned = [program.patch(address, {"is_pinned": one}) for one in (True, True, False)]
    made = program.post(f"{address}/publish", {"name": "Sums"})
    again = program.post(f"{address}/publish", {"name": "Sums"})

    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        (name,) = archive.getnames()
    assert name.endswith("-step-1/model.safetensors")
    assert [each.status_code for each in pinned] == [200, 200, 200]
    assert made.status_code == 201, made.text
    assert (made.json()["step"], made.json()["run_id"]) == (1, saved.run_id)
    assert Path(made.json()["path"], "model.safetensors").is_file()
    assert again.status_code == 409
    model = PublishedModel.objects.get()
    assert program.get("/models").json()["items"][0]["id"] == model.pk
    assert program.delete(f"/models/{model.pk}").json()["done"] is True
    assert not PublishedModel.objects.exists()


def test_a_checkpoint_is_tried(program, team, saved):
    address = f"/runs/{saved.run_id}/checkpoints/{saved.name}/try"
    recipe = make_recipe(team, name="Other")
    body = {"num_samples": 2, "temperature": 0.5, "recipe_version_id": recipe.pk}

    made = program.post(address, {**body, "prompt": "1+1="})
    unscored = program.post(address, {"prompt": "2+2=", "is_scored": False})

    assert made.status_code == unscored.status_code == 201, made.text
    tried = made.json()
    assert (tried["run_id"], tried["checkpoint"]) == (saved.run_id, saved.name)
    assert (tried["prompt"], tried["positions"]) == ("1+1=", [])
    assert tried["recipe_version_id"] == recipe.pk
    assert unscored.json()["is_scored"] is False
    probe = Probe.objects.get(pk=tried["id"])
    assert probe.config["rollout"]["temperature"] == 0.5
    for is_base in (False, True):
        ProbeGroup.objects.create(
            probe=probe, position=0, is_base=is_base, completions=[completion("2", 1.0)]
        )
    groups = f"/probes/{probe.pk}/groups"
    first = program.get(f"{groups}?limit=1").json()
    second = program.get(f"{groups}?limit=1&cursor={first['next_cursor']}").json()
    both = [*first["items"], *second["items"]]
    assert [group["is_base"] for group in both] == [False, True]


def test_a_try_needs_a_prompt_and_the_files(program, saved):
    address = f"/runs/{saved.run_id}/checkpoints/{saved.name}/try"

    nothing = program.post(address, {})
    beyond = program.post(address, {"row": 10**6})
    strange = program.post(address, {"prompt": "1", "recipe_version_id": 10**6})
    CheckpointStore(saved.run_id).remove(saved.name)
    gone = program.post(address, {"prompt": "1"})

    fields = [each.json()["errors"][0]["field"] for each in (nothing, beyond, strange)]
    assert fields == ["body.row", "body.row", "body.recipe_version_id"]
    assert gone.status_code == 409
