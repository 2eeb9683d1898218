import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from tests.bench.starter.__main__ import SHIPPED, STARTERS
from tests.bench.starter.__main__ import main as make_starter
from tests.trainer.rewards.scores import score_completion
from trainer.__main__ import main
from trainer.config import load_config
from trainer.data import read_rows
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe, recipe_bounds
from trainer.rollout.environments import GuessEnvironment, Said
from trainer.tokenizers import load_tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that was made with ten steps."""
    folder = tmp_path_factory.mktemp("warm") / "starter"
    make_starter([str(folder), "--steps", "10"])
    return folder


def facts_of(folder: Path) -> dict:
    return json.loads((folder / "starter.json").read_text())


def test_the_loss_falls(made):
    facts = facts_of(made)

    assert facts["steps"] == 10
    assert facts["first_loss"] > 4
    assert facts["last_loss"] < 0.75 * facts["first_loss"]


@pytest.mark.parametrize("name", ["rows.jsonl", "recipe.json", "run.toml"])
def test_the_shipped_files_come_from_the_command(made, name):
    assert (SHIPPED / name).read_bytes() == (made / name).read_bytes()
    assert facts_of(SHIPPED)["steps"] == 650


@pytest.mark.parametrize("is_shipped", [True, False])
def test_every_file_has_the_hash_that_was_written_last(made, is_shipped):
    folder = SHIPPED if is_shipped else made
    hashes = facts_of(folder)["sha256"]

    assert {"model/model.safetensors", "model/tokenizer.json"} < set(hashes)
    assert {"rows.jsonl", "recipe.json", "run.toml"} < set(hashes)
    for name, sha256 in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    """The game guess, made with ten steps."""
    folder = tmp_path_factory.mktemp("warm") / "guess"
    make_starter([str(folder), "--task", "guess", "--steps", "10"])
    return folder


@pytest.mark.parametrize("name", ["rows.jsonl", "recipe.json", "run.toml"])
def test_the_shipped_game_comes_from_the_command(game, name):
    assert (STARTERS / "guess" / name).read_bytes() == (game / name).read_bytes()


def test_the_shipped_game_has_the_hashes_that_were_written_last():
    folder = STARTERS / "guess"
    hashes = facts_of(folder)["sha256"]

    assert {"model/model.safetensors", "rows.jsonl", "run.toml"} < set(hashes)
    for name, sha256 in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256
    assert facts_of(folder)["steps"] == 300


def test_every_row_of_the_game_can_be_played():
    config = load_config(STARTERS / "guess" / "run.toml")
    game = GuessEnvironment()

    rows = read_rows(STARTERS / "guess" / "rows.jsonl")

    assert len(rows) - config.data.num_eval_rows == 1_024
    assert len({(row.prompt, str(row.answer)) for row in rows}) == len(rows)
    for row in rows:
        assert game.open(row, 0) == ()
        answer = str(row.answer)
        reply = game.reply(row, 0, [Said(text=answer, content=answer)])
        assert reply.episode_reward == 1.0


def test_every_row_has_a_prompt_a_newcomer_can_read_and_an_answer_that_scores():
    recipe = Recipe.model_validate_json((SHIPPED / "recipe.json").read_text())

    rows = read_rows(SHIPPED / "rows.jsonl")

    assert len(rows) > 300
    assert len({str(row.columns) for row in rows}) == len(rows)
    for row in rows:
        completion = f"<think></think><answer>{row.answer}</answer>"
        score = score_completion(recipe, Sample("", completion, None, row.columns))
        assert score.total == recipe_bounds(recipe)[1] == 1.0
        shown = Sample("", row.columns["completion"], None, row.columns)
        assert score_completion(recipe, shown).total == 1.0
        assert row.prompt.endswith(f"> {row.columns['target']}")


def test_the_model_loads_and_the_run_is_a_valid_configuration():
    config = load_config(SHIPPED / "run.toml")

    model = AutoModelForCausalLM.from_pretrained(config.model.path)

    assert 500_000 < model.num_parameters() < 700_000
    assert config.data.rows == "rows.jsonl"
    assert config.completions_per_step == 256


@pytest.mark.parametrize(
    "load",
    [
        load_tokenizer,
        AutoTokenizer.from_pretrained,
        PreTrainedTokenizerFast.from_pretrained,
    ],
)
def test_every_way_of_loading_the_tokenizer_gives_each_text_back(load):
    tokenizer = load(str(SHIPPED / "model"))

    for row in read_rows(SHIPPED / "rows.jsonl"):
        text = row.prompt + "\n" + row.columns["completion"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for tag in ("<think>", "</think>", "<answer>", "</answer>", "12"):
        assert len(tokenizer.encode(tag)) == 1
    assert tokenizer.unk_token_id in tokenizer.encode("hello")
    assert tokenizer.eos_token is not None


def test_another_seed_makes_other_rows(tmp_path):
    make_starter([str(tmp_path / "other"), "--seed", "2", "--steps", "1"])

    other = (tmp_path / "other" / "rows.jsonl").read_bytes()
    assert other != (SHIPPED / "rows.jsonl").read_bytes()


def copy_with(folder: Path, *, num_steps: int) -> Path:
    """A copy of the shipped starter, with a run of so many steps."""
    shutil.copytree(SHIPPED, folder)
    toml = (folder / "run.toml").read_text()
    assert toml.count("num_steps = 200") == 1
    toml = toml.replace("num_steps = 200", f"num_steps = {num_steps}")
    (folder / "run.toml").write_text(toml)
    return folder / "run.toml"


def means_of_steps(out: Path, metric: str) -> list[float]:
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [
        event["metrics"][metric]
        for event in events
        if event["type"] == "step_finished" and metric in event["metrics"]
    ]


def test_the_shipped_model_solves_some_problems_and_not_most(tmp_path):
    """Of the 256 completions of a run's first step."""
    toml = copy_with(tmp_path / "starter", num_steps=1)

    assert main(["run", str(toml), "--out", str(tmp_path / "run")]) == 0

    [share] = means_of_steps(tmp_path / "run", "reward/equation/mean")
    assert 0.15 < share < 0.4  # 0.25 when it was made


@pytest.mark.slow(minutes=3)
def test_the_starter_run_learns(tmp_path, request):
    """A fifth of it, where it gains 0.16 by now; all of it by `make soak`."""
    num_steps, gain = (200, 0.2) if request.config.getoption("--soak") else (40, 0.1)
    toml = copy_with(tmp_path / "starter", num_steps=num_steps)
    run = [sys.executable, "-m", "trainer", "run", str(toml)]

    subprocess.run([*run, "--out", str(tmp_path / "run")], cwd=ROOT, check=True)

    rewards = means_of_steps(tmp_path / "run", "reward/mean")
    assert 0.2 < sum(rewards[:5]) / 5 < 0.5
    assert sum(rewards[-20:]) / 20 > sum(rewards[:5]) / 5 + gain
