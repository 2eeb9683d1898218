from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from dashboard.accounts.models import Team, User
from dashboard.datasets.models import Dataset
from dashboard.runs.models import Run
from dashboard.training import starter
from dashboard.training.starter import StarterFault, launch_starter_run, warm_up
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
def warmed_up(tmp_path: Path) -> Path:
    """What a warm-up leaves, as far as the first run needs it."""
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


def test_the_first_run_uses_the_warm_ups_settings(
    team: Team, alice: User, warmed_up: Path
) -> None:
    run = launch_starter_run(team=team, user=alice, folder=warmed_up)

    assert run is not None
    config = RunConfig.model_validate(run.config)
    assert config.model.path == str(warmed_up / "model")
    assert config.data.rows == "rows.jsonl"
    assert run.num_steps == config.optim.num_steps == 12
    assert run.dataset_version.num_rows == 4
    assert run.dataset_version.mapping["columns"] == ["target"]


def test_rows_keep_the_order_the_model_was_warmed_up_with(
    team: Team, alice: User, warmed_up: Path
) -> None:
    run = launch_starter_run(team=team, user=alice, folder=warmed_up)

    assert run is not None
    kept = run.dataset_version.rows.order_by("position")
    assert [row.columns["target"] for row in kept] == [0, 1, 2, 3]


def test_it_is_launched_once(team: Team, alice: User, warmed_up: Path) -> None:
    launch_starter_run(team=team, user=alice, folder=warmed_up)

    again = launch_starter_run(team=team, user=alice, folder=warmed_up)

    assert again is None
    assert Run.objects.count() == 1
    assert Dataset.objects.count() == 1


def test_it_is_launched_even_with_earlier_runs(
    team: Team, alice: User, warmed_up: Path, run: Run
) -> None:
    launched = launch_starter_run(team=team, user=alice, folder=warmed_up)

    assert launched is not None
    assert launched.name == "first-run"
    assert Run.objects.count() == 2


def test_it_is_not_launched_again_once_it_was_deleted(
    team: Team, alice: User, warmed_up: Path
) -> None:
    launched = launch_starter_run(team=team, user=alice, folder=warmed_up)
    assert launched is not None
    launched.delete()
    Dataset.objects.all().delete()

    assert launch_starter_run(team=team, user=alice, folder=warmed_up) is None


def python_that(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the trainer's process with one that runs this code."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport sys\nout = sys.argv[5]\n{code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(starter.sys, "executable", str(script))


def test_a_killed_warm_up_begins_again_in_a_fresh_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "countdown"
    folder.mkdir()
    (folder / "half-made").touch()
    python_that(
        tmp_path,
        "import os, json\n"
        "os.mkdir(out)\n"
        "open(out + '/starter.json', 'w').close()\n"
        "print(json.dumps({'phase': 'pretraining', 'done': 3, 'total': 9}))\n"
        "print('a line for people')",
        monkeypatch,
    )
    shown: list[tuple[str, int, int]] = []

    warm_up(folder, show=lambda *progress: shown.append(progress))

    assert shown == [("pretraining", 3, 9)]
    assert not (folder / "half-made").exists()
    assert starter.is_warmed_up(folder)


def test_a_failed_warm_up_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that(tmp_path, "raise SystemExit('out of memory')", monkeypatch)

    with pytest.raises(StarterFault, match="out of memory"):
        warm_up(tmp_path / "countdown", show=lambda *progress: None)
