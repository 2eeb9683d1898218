"""`python -m trainer run`, as a process."""

import tomllib
from pathlib import Path

import pytest

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
)
from trainer.config import RunConfig, load_config
from trainer.events import parse_event
from trainer.metric_names import find_metric

METRICS = {
    "reward/mean",
    "reward/std",
    "reward/short/mean",
    "group/std_mean",
    "group/frac_zero_std",
    "group/frac_all_max",
    "group/frac_all_min",
    "group/num_effective",
    "advantage/abs_mean",
    "kl/mean",
    "kl/max",
    "kl/p99",
    "entropy",
    "ratio/mean",
    "ratio/max",
    "clip/frac_low",
    "clip/frac_high",
    "loss",
    "grad_norm",
    "lr",
    "completion/mean_length",
    "completion/frac_truncated",
    "time/generate",
    "time/score",
    "time/logprobs",
    "time/update",
    "time/sync",
    "time/step",
    "tokens_per_second",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model_folder, rows_path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tree = config_tree(
        model_folder,
        rows_path,
        loss={"kl_coef": 0.01},
        optim={"num_steps": 25, "schedule": "linear", "warmup_steps": 2},
        evaluation={"every_steps": 10},
        checkpoint={"every_steps": 10, "keep_last": 2},
    )
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_every_line_is_an_event_numbered_without_a_gap(finished):
    lines = (finished / "events.jsonl").read_bytes().splitlines()

    events = [parse_event(line) for line in lines]

    assert [event.line for event in events] == list(range(1, len(events) + 1))
    assert {event.attempt for event in events} == {1}


def test_it_tells_its_story_in_order(finished):
    events = read_events(finished / "events.jsonl")

    aside = ("group_scored", "tokens_measured", "mismatch_measured", "warned")
    values = [(e["type"], e["step"]) for e in events if e["type"] not in aside]
    assert values[:3] == [("run_started", 0), ("evaluated", 0), ("step_finished", 1)]
    assert values[-4:] == [
        ("step_finished", 25),
        ("evaluated", 25),
        ("checkpoint_saved", 25),
        ("run_finished", 25),
    ]
    assert [s for kind, s in values if kind == "step_finished"] == list(range(1, 26))
    assert [s for kind, s in values if kind == "evaluated"] == [0, 10, 20, 25]


def test_the_log_has_the_settings(finished):
    config = load_config(finished.parent / "run.json")

    started = read_events(finished / "events.jsonl")[0]

    assert RunConfig.model_validate(started["config"]).optim == config.optim
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    assert started["versions"]["cohort"] == version


def test_every_step_has_the_agreed_metrics(finished):
    for event in only(read_events(finished / "events.jsonl"), "step_finished"):
        assert event["metrics"].keys() >= METRICS
        assert all(event["metrics"][name] is not None for name in METRICS)


def test_the_list_of_metrics_has_every_one(finished):
    events = read_events(finished / "events.jsonl")
    measured = only(events, "step_finished") + only(events, "evaluated")
    names = {name for event in measured for name in event["metrics"]}

    assert [name for name in names if find_metric(name) is None] == []


def test_the_reward_rises(finished):
    steps = only(read_events(finished / "events.jsonl"), "step_finished")
    rewards = [step["metrics"]["reward/mean"] for step in steps]

    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5


def test_groups_hold_what_their_metrics_say(finished):
    events = read_events(finished / "events.jsonl")
    groups = [g for g in only(events, "group_scored") if g["step"] == 3]
    metrics = only(events, "step_finished")[2]["metrics"]

    assert len(groups) == 4
    assert len({group["prompt_index"] for group in groups}) == 4
    rewards = [c["reward"] for group in groups for c in group["completions"]]
    assert len(rewards) == 16
    assert sum(rewards) / 16 == pytest.approx(metrics["reward/mean"])
    lengths = [c["num_tokens"] for group in groups for c in group["completions"]]
    assert sum(lengths) / 16 == pytest.approx(metrics["completion/mean_length"])
    for group in groups:
        total = sum(c["advantage"] for c in group["completions"])
        assert total == pytest.approx(0.0, abs=1e-9)


def test_the_ratio_is_one_with_a_single_update_per_batch(finished):
    for event in only(read_events(finished / "events.jsonl"), "step_finished"):
        assert event["metrics"]["ratio/max"] == pytest.approx(1.0)


def test_a_pass_trains_on_every_prompt_once_and_never_on_held_out_ones(finished):
    groups = only(read_events(finished / "events.jsonl"), "group_scored")
    first_pass = [g["prompt_index"] for g in groups if g["step"] <= 5]

    assert len(first_pass) == len(set(first_pass)) == 20
    assert {g["prompt_index"] for g in groups} == set(first_pass)


def test_old_checkpoints_are_deleted(finished):
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "step-000020-attempt-1",
        "step-000025-attempt-1",
    ]


def test_a_checkpoints_model_can_be_the_start_of_another_run(
    finished, rows_path, tmp_path
):
    model = finished / "checkpoints" / "step-000025-attempt-1" / "model"
    tree = config_tree(model, rows_path, optim={"num_steps": 1})

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    step = only(read_events(tmp_path / "out" / "events.jsonl"), "step_finished")[0]
    assert step["metrics"]["reward/mean"] > 0.5


def test_several_updates_per_batch_move_the_ratio(model_folder, rows_path, tmp_path):
    tree = config_tree(
        model_folder,
        rows_path,
        optim={"num_steps": 2, "updates_per_batch": 3},
        loss={"kl_coef": 0.1, "kl_in": "reward", "aggregation": "constant"},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    steps = only(read_events(tmp_path / "out" / "events.jsonl"), "step_finished")
    assert steps[0]["metrics"]["ratio/max"] > 1.0


def test_a_log_that_exists_is_not_overwritten(finished):
    before = (finished / "events.jsonl").read_bytes()

    done = run_trainer("run", finished.parent / "run.json", "--out", finished)

    assert done.returncode == 2
    assert "already contains" in done.stderr
    assert (finished / "events.jsonl").read_bytes() == before


def test_a_bad_configuration_is_refused_field_by_field(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(
        model_folder, rows_path, optim={"learning_rate": -1}, rollout={"colour": "red"}
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "optim.learning_rate" in done.stderr
    assert "rollout.colour" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"path": "/nowhere/model"}}, "/nowhere/model"),
        ({"data": {"rows": "none.jsonl"}}, "none.jsonl"),
        ({"data": {"max_prompt_tokens": 3}}, "1 to 3"),
        ({"rollout": {"prompts_per_step": 21}}, "20 rows"),
        ({"data": {"num_eval_rows": 24}}, "24 held-out prompts"),
    ],
)
def test_a_run_that_cannot_start_explains_why_in_its_log(
    changes, sentence, model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, **changes)

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 1
    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert event["type"] == "run_failed"
    assert sentence in event["error"]


def test_a_folder_without_a_tokenizer_is_named(rows_path, tmp_path):
    model = write_model(tmp_path / "model")
    for path in model.glob("*token*"):
        path.unlink()
    config = write_config(tmp_path, config_tree(model, rows_path))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 1
    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert "has no tokenizer" in event["error"]
