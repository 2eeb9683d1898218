from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from trainer.__main__ import main
from trainer.config import load_config
from trainer.data import read_rows
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import score_completion
from trainer.rewards.spec import Recipe, recipe_bounds

ROOT = Path(__file__).parents[3]
STEPS = 10


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    """A folder made with a few steps, and what was printed meanwhile."""
    folder = tmp_path_factory.mktemp("warm") / "starter"
    arguments = ["--json-progress", "--out", str(folder), "--steps", str(STEPS)]
    with contextlib.redirect_stdout(io.StringIO()) as reported:
        assert main(["warmup", *arguments]) == 0
    return folder, reported.getvalue()


def facts_of(folder: Path) -> dict:
    return json.loads((folder / "starter.json").read_text())


def test_the_loss_falls(starter):
    facts = facts_of(starter[0])

    assert facts["steps"] == STEPS
    assert facts["first_loss"] > 4
    assert facts["last_loss"] < 0.75 * facts["first_loss"]


def test_progress_is_reported_in_lines_of_json(starter):
    lines = [json.loads(line) for line in starter[1].splitlines()]

    assert lines[0]["phase"] == "Warm-up"
    assert {"phase": "Warm-up", "done": STEPS, "total": STEPS} in lines
    assert lines[-1] == {"phase": "Saving", "done": 1, "total": 1}


def test_every_file_is_there_and_has_the_hash_that_was_written_last(starter):
    folder = starter[0]
    hashes = facts_of(folder)["sha256"]

    assert {"model/model.safetensors", "model/tokenizer.json"} < set(hashes)
    assert {"rows.jsonl", "recipe.json", "run.toml"} < set(hashes)
    for name, sha256 in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256


def test_every_row_has_a_prompt_a_newcomer_can_read_and_an_answer_that_scores(starter):
    recipe = Recipe.model_validate_json((starter[0] / "recipe.json").read_text())

    rows = read_rows(starter[0] / "rows.jsonl")

    assert len(rows) > 300
    assert len({str(row.columns) for row in rows}) == len(rows)
    for row in rows:
        completion = f"<think></think><answer>{row.answer}</answer>"
        score = score_completion(recipe, Sample("", completion, None, row.columns))
        assert score.total == recipe_bounds(recipe)[1] == 1.0
        shown = Sample("", row.columns["completion"], None, row.columns)
        assert score_completion(recipe, shown).total == 1.0
        assert row.prompt.endswith(f"> {row.columns['target']}")


def test_the_model_loads_and_the_run_is_a_valid_configuration(starter):
    config = load_config(starter[0] / "run.toml")

    model = AutoModelForCausalLM.from_pretrained(config.model.path)

    assert 500_000 < model.num_parameters() < 700_000
    assert config.data.rows == "rows.jsonl"
    assert config.completions_per_step == 256


def test_the_same_seed_makes_the_same_rows(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = ["--out", str(tmp_path / name), "--seed", str(seed), "--steps", "1"]
        assert main(["warmup", *out]) == 0

    first, again, other = (
        (tmp_path / name / "rows.jsonl").read_bytes() for name in "abc"
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--seed", "-1"], "--seed at least 0"),
    ],
)
def test_bad_arguments_are_answered(tmp_path, capsys, arguments, complaint):
    code = main(["warmup", "--out", str(tmp_path / "new"), *arguments])

    assert code == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")

    assert main(["warmup", "--out", str(tmp_path), "--steps", "1"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow(minutes=3)
def test_the_starter_run_learns(tmp_path, request):
    """A fifth of it, where it gains 0.16 by now; all of it by `make soak`."""
    num_steps, gain = (200, 0.2) if request.config.getoption("--soak") else (40, 0.1)
    out = tmp_path / "starter"
    assert main(["warmup", "--out", str(out)]) == 0
    toml = (out / "run.toml").read_text()
    assert toml.count("num_steps = 200") == 1
    toml = toml.replace("num_steps = 200", f"num_steps = {num_steps}")
    (out / "run.toml").write_text(toml)
    run = [sys.executable, "-m", "trainer", "run", str(out / "run.toml")]

    subprocess.run([*run, "--out", str(tmp_path / "run")], cwd=ROOT, check=True)

    events = [
        json.loads(line)
        for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    ]
    rewards = [
        event["metrics"]["reward/mean"]
        for event in events
        if event["type"] == "step_finished"
    ]
    assert 0.2 < sum(rewards[:5]) / 5 < 0.5
    assert sum(rewards[-20:]) / 20 > sum(rewards[:5]) / 5 + gain
