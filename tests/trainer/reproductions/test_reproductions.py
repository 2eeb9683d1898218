"""Each reproduction has the published settings, and its tiny form trains."""

import json
from pathlib import Path

import pytest

from tests.bench import reproductions as maker
from tests.trainer.rewards.scores import score_completion
from tests.trainer.tiny import only, read_events, run_trainer
from trainer.__main__ import main
from trainer.config import RunConfig
from trainer.reproductions.reproduction import (
    FREE,
    STARTERS,
    load_reproduction,
    read_scores,
    reproduction_names,
)
from trainer.rewards.rule import Sample

NAMES = [
    "countdown-3b-aha",
    "countdown-3b-zero",
    "gsm8k-0.5b-lora",
    "gsm8k-1.5b-lora",
    "gsm8k-1.5b-skyrl",
    "gsm8k-3b-lora",
    "gsm8k-7b-lora",
    "lora-regret-0.6b",
    "rlox-toy",
    "smollm2-arithmetic",
    "starter-countdown",
]
VERL_LOG = {
    "data.max_prompt_tokens": 512,
    "model.lora_rank": 32,
    "model.lora_alpha": 32.0,
    "model.lora_targets": "all-linear",
    "rollout.prompts_per_step": 64,
    "rollout.group_size": 5,
    "rollout.max_new_tokens": 1024,
    "rollout.temperature": 1.0,
    "optim.num_steps": 116,  # one epoch: 7,473 rows in batches of 64
    "optim.minibatches": 1,
    "optim.updates_per_batch": 1,
    "optim.learning_rate": 3e-5,
    "optim.schedule": "constant",
    "optim.weight_decay": 0.01,
    "optim.max_grad_norm": 1.0,
    "loss.surrogate": "clip",
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.2,
    "loss.dual_clip": 3.0,
    "loss.aggregation": "token_mean",
    "loss.kl_in": "loss",
    "loss.kl_estimator": "k3",
    "loss.kl_coef": 0.001,
    "loss.kl_clamp": 10.0,
    "loss.entropy_coef": 0.001,
    "evaluation.temperature": 0.0,
    "evaluation.samples_per_prompt": 1,
}
SKYRL = {
    "model.lora_rank": 0,
    "rollout.prompts_per_step": 1024,
    "rollout.group_size": 5,
    "rollout.max_new_tokens": 1024,
    "data.max_prompt_tokens": 512,
    "optim.num_steps": 140,  # 20 epochs of 7 steps
    "optim.minibatches": 4,
    "optim.learning_rate": 1e-6,
    "optim.weight_decay": 0.01,
    "loss.dual_clip": None,
    "loss.kl_clamp": None,
    "loss.kl_coef": 0.001,
    "loss.kl_estimator": "k3",
    "loss.entropy_coef": 0.0,
}
VALUES = {
    "gsm8k-1.5b-lora": (0.779, 116, "Qwen/Qwen2.5-1.5B-Instruct", VERL_LOG),
    "gsm8k-0.5b-lora": (0.543, 116, "Qwen/Qwen2.5-0.5B-Instruct", VERL_LOG),
    "gsm8k-3b-lora": (0.861, 116, "Qwen/Qwen2.5-3B-Instruct", VERL_LOG),
    "gsm8k-7b-lora": (0.934, 116, "Qwen/Qwen2.5-7B-Instruct", VERL_LOG),
    "gsm8k-1.5b-skyrl": (0.796, 140, "Qwen/Qwen2.5-1.5B-Instruct", SKYRL),
    "countdown-3b-aha": (
        *(None, 1000, "Qwen/Qwen2.5-3B"),
        {"rollout.group_size": 4, "loss.surrogate": "reinforce"},
    ),
    "countdown-3b-zero": (
        *(None, 1000, "Qwen/Qwen2.5-3B-Instruct"),
        {"rollout.group_size": 8, "loss.kl_coef": 0.0},
    ),
    "lora-regret-0.6b": (
        *(None, 200, "Qwen/Qwen3-0.6B"),
        {"model.lora_rank": 1, "optim.learning_rate": 1e-6, "rollout.group_size": 16},
    ),
    "rlox-toy": (1.0, 60, "", {"loss.kl_estimator": "k1", "loss.kl_coef": 0.1}),
}


def settings_of(config: RunConfig) -> dict:
    return {
        f"{part}.{name}": value
        for part, names in config.model_dump().items()
        if isinstance(names, dict)
        for name, value in names.items()
    }


def test_every_reproduction_is_listed(capsys):
    assert reproduction_names() == NAMES
    assert main(["reproduce"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES


@pytest.mark.parametrize("name", VALUES)
def test_a_reproduction_has_the_published_settings(name):
    value, steps, model, settings = VALUES[name]
    reproduction = load_reproduction(name)

    (published,) = reproduction.published
    assert (published.value, published.steps) == (value, steps)
    assert reproduction.model == model
    assert settings_of(reproduction.config()).items() >= settings.items()
    assert reproduction.config().optim.num_steps == steps
    assert reproduction.differs


def test_a_published_score_is_one_of_those_measured():
    for name in NAMES:
        reproduction = load_reproduction(name)
        assert {each.score for each in reproduction.published} <= {*reproduction.scores}
        assert all(each.source and each.reading for each in reproduction.published)


# Completion, answer, strict, lenient: by hand.
SCORED = [
    ("9 + 9 = 18\n#### 18", "18", 1, 1),
    ("####18", "18", 0, 1),  # the space is missing
    ("It is 18.", "18", 0, 1),
    ("#### 18 apples", "18", 1, 1),
    ("#### 18.", "18", 0, 1),  # as text, "18." is not "18"
    ("#### 18.0", "18", 0, 1),
    ("#### $18", "18", 0, 1),  # no digit follows the space
    ("#### 1,800", "1800", 1, 1),
    ("#### 1800", "1,800", 1, 1),
    ("#### -5", "-5", 1, 1),
    ("#### 17\n#### 18", "18", 1, 1),
    ("#### 18\n#### 17", "18", 0, 0),
    ("#### 18 of 20", "18", 1, 0),  # the last number is 20
    ("#### 18" + " " * 290, "18", 1, 1),
    ("#### 18" + " x" * 200, "18", 0, 1),  # before the last 300 characters
    ("", "18", 0, 0),
    ("no number", "18", 0, 0),
    ("#### eighteen", "18", 0, 0),
    ("We have 12 and 6.\n#### 18", "12 + 6 = 18\n#### 18", 1, 1),
    ("#### 36/2", "18", 0, 1),  # strict reads 36
]


def test_gsm8k_is_scored_strictly_and_leniently():
    recipe = load_reproduction("gsm8k-1.5b-lora").config().reward.recipe

    assert len(SCORED) == 20
    for text, answer, strict, lenient in SCORED:
        score = score_completion(recipe, Sample("How many?", text, answer))
        assert score.rules == {"strict": strict, "lenient": lenient}, text
        assert score.total == strict  # the lenient score is only measured


def test_a_run_with_the_settings_has_no_changes():
    reproduction = load_reproduction("gsm8k-1.5b-lora")
    path = "/models/Qwen2.5-1.5B-Instruct"
    config = reproduction.config(model=path, rows="r", seed=2, test="t")

    assert reproduction.find_changes(config) == []


def test_changed_settings_are_named_and_end_exactness():
    reproduction = load_reproduction("gsm8k-1.5b-lora")
    tree = reproduction.config(model=reproduction.model).model_dump(mode="json")
    tree["optim"]["micro_batch_tokens"] = 4096
    tree["logging"]["token_groups"] = 0

    changes = reproduction.find_changes(RunConfig.model_validate(tree))
    assert changes == ["optim.micro_batch_tokens"]
    assert set(changes) <= FREE

    tree["optim"]["learning_rate"] = 1e-5
    changes = reproduction.find_changes(RunConfig.model_validate(tree))
    assert set(changes) == {"optim.micro_batch_tokens", "optim.learning_rate"}
    assert not set(changes) <= FREE


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("optim", {"num_steps": 50}),
        ("reward", {"recipe": {"rules": [{"name": "a", "kind": "numeric_answer"}]}}),
        ("model", {"path": "Qwen/Qwen2.5-7B-Instruct"}),
    ],
)
def test_another_run_is_no_reproduction(part, change):
    reproduction = load_reproduction("gsm8k-1.5b-lora")
    tree = reproduction.config(model=reproduction.model).model_dump(mode="json")
    tree[part] |= change

    assert reproduction.find_changes(RunConfig.model_validate(tree)) is None


def test_show_prints_a_configuration_that_can_be_run(capsys):
    assert main(["reproduce", "rlox-toy", "--show"]) == 0

    shown = capsys.readouterr().out
    assert "\n[loss]\n" in shown
    assert load_reproduction("rlox-toy").differs[0] in shown


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["nothing", "--show"], "gsm8k-1.5b-lora"),
        (["rlox-toy"], "--out"),
        (["rlox-toy", "--out", "{folder}", "--seeds", "0"], "at least one seed"),
        (["gsm8k-1.5b-lora", "--out", "{folder}"], "--rows"),
        (["gsm8k-1.5b-lora", "--out", "{folder}", "--rows", "{rows}"], "question"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments, fragment, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "1 + 1", "answer": "2"}\n')
    arguments = [text.format(folder=tmp_path / "out", rows=rows) for text in arguments]

    assert main(["reproduce", *arguments]) == 2
    assert fragment in capsys.readouterr().err


def test_the_result_of_another_run_is_not_reported(tmp_path, capsys):
    folder = tmp_path / "seed-0"
    folder.mkdir()
    place = {"type": "run_finished", "attempt": 1, "time": 0, "step": 60, "line": 1}
    (folder / "events.jsonl").write_text(json.dumps(place) + "\n")
    config = load_reproduction("rlox-toy").config(model="another", seed=0)
    (folder / "config.json").write_text(config.model_dump_json())
    command = ["reproduce", "rlox-toy", "--out", str(tmp_path), "--seeds", "1"]

    assert main(command) == 2
    assert str(folder) in capsys.readouterr().err
    rows = {"model": "another", "rows": "../rows.jsonl"}
    config = load_reproduction("rlox-toy").config(**rows, seed=0)
    (folder / "config.json").write_text(config.model_dump_json(exclude_defaults=True))
    command += ["--model", "another"]
    assert main(command) == 0
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "a", "answer": "b"}\n')
    assert main([*command, "--rows", str(own)]) == 2


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path):
    place = {"type": "step_finished", "attempt": 1, "time": 0, "step": 1}
    line = json.dumps(place | {"line": 1, "metrics": {"eval/heldout/mean": 0.5}})
    (tmp_path / "events.jsonl").write_text(f"{line}\n{line[:40]}")

    assert read_scores(load_reproduction("rlox-toy"), tmp_path) == {"reward": 0.5}


def test_the_shipped_rows_come_from_the_command(tmp_path):
    maker.main([str(tmp_path)])

    for name in ("rlox", "arithmetic"):
        rows = Path(name, "rows.jsonl")
        assert (tmp_path / rows).read_bytes() == (STARTERS / rows).read_bytes()


def test_tiny_runs_three_steps_and_tells_no_accuracy(tmp_path, capsys):
    check_tiny("gsm8k-1.5b-skyrl", tmp_path)

    output = capsys.readouterr().out
    assert "no accuracy" in output
    assert "%" not in output


@pytest.mark.slow  # 8 s each
@pytest.mark.parametrize("name", NAMES)
def test_tiny_of_each(name, tmp_path):
    check_tiny(name, tmp_path)


def check_tiny(name: str, folder: Path) -> None:
    done = run_trainer("reproduce", name, "--tiny", "--out", folder)

    assert done.returncode == 0, done.stderr
    events = read_events(folder / "events.jsonl")
    assert [event["step"] for event in only(events, "step_finished")] == [1, 2, 3]
    for rule in load_reproduction(name).config().reward.recipe.rules:
        assert f"reward/{rule.name}/mean" in only(events, "step_finished")[0]["metrics"]


@pytest.mark.slow  # 25 s
def test_the_toy_reaches_the_published_reward(tmp_path):
    done = run_trainer("reproduce", "rlox-toy", "--out", tmp_path, "--seeds", "2")

    assert done.returncode == 0, done.stderr
    reproduction = load_reproduction("rlox-toy")
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        assert read_scores(reproduction, folder) == {"reward": 1.0}
