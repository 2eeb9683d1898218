import hashlib
import json
from pathlib import Path

import pytest

from dashboard.datasets.models import Dataset
from dashboard.runs.models import Run
from dashboard.supervision.starter import copy_starter, launch_starter_run
from trainer.config import RunConfig

pytestmark = pytest.mark.django_db
RUN = """
[model]
path = "model"
[data]
rows = "rows.jsonl"
num_eval_rows = 1
[optim]
num_steps = 12
[[reward.recipe.rules]]
name = "answer"
kind = "exact_answer"
"""


@pytest.fixture
def starter(tmp_path) -> Path:
    """What a starter has, as far as the first run needs it."""
    rows = [
        {"prompt": f"{n} 5 7 > 1", "answer": None, "columns": {"target": n}}
        for n in range(4)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text)
    recipe = {"rules": [{"name": "answer", "kind": "exact_answer"}]}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "starter.json").write_text("{}")
    return tmp_path


def test_the_first_run_uses_the_starters_settings(team, alice, starter):
    run = launch_starter_run(team=team, user=alice, folder=starter)

    assert run is not None
    config = RunConfig.model_validate(run.config)
    assert config.model.path == str(starter / "model")
    assert config.data.rows == "rows.jsonl"
    assert run.num_steps == config.optim.num_steps == 12
    assert run.dataset_version.num_rows == 4
    assert run.dataset_version.mapping["columns"] == ["target"]


def test_rows_keep_the_order_the_model_was_starter_with(team, alice, starter):
    run = launch_starter_run(team=team, user=alice, folder=starter)

    assert run is not None
    kept = run.dataset_version.rows.order_by("position")
    assert [row.columns["target"] for row in kept] == [0, 1, 2, 3]


def test_it_is_launched_once(team, alice, starter):
    launch_starter_run(team=team, user=alice, folder=starter)

    again = launch_starter_run(team=team, user=alice, folder=starter)

    assert again is None
    assert Run.objects.count() == 1
    assert Dataset.objects.count() == 1


def test_it_is_launched_even_with_earlier_runs(team, alice, starter, run):
    launched = launch_starter_run(team=team, user=alice, folder=starter)

    assert launched is not None
    assert launched.name == "first-run"
    assert Run.objects.count() == 2


def test_it_is_not_launched_again_once_it_was_deleted(team, alice, starter):
    launched = launch_starter_run(team=team, user=alice, folder=starter)
    assert launched is not None
    launched.delete()
    Dataset.objects.all().delete()

    assert launch_starter_run(team=team, user=alice, folder=starter) is None


@pytest.fixture
def data(settings, tmp_path) -> Path:
    settings.COHORT_DATA = tmp_path
    return tmp_path


def test_a_copy_that_was_ended_is_made_again_from_its_start(data):
    folder = data / "starter" / "countdown"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_text("half of i")
    (folder / "stray").touch()

    assert copy_starter() == folder

    assert not (folder / "stray").exists()
    hashes = json.loads((folder / "starter.json").read_text())["sha256"]
    for name, sha256 in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256


def test_a_starter_that_is_there_is_kept(data):
    folder = data / "starter" / "countdown"
    folder.mkdir(parents=True)
    (folder / "starter.json").write_text("of an earlier release")

    copy_starter()

    assert [path.name for path in folder.iterdir()] == ["starter.json"]


def test_the_shipped_starter_becomes_a_run_of_its_copy(team, alice, data):
    run = launch_starter_run(team=team, user=alice, folder=copy_starter())

    assert run is not None
    config = RunConfig.model_validate(run.config)
    assert config.model.path == str(data / "starter" / "countdown" / "model")
    assert config.completions_per_step == 256
    assert run.dataset_version.num_rows > 300
