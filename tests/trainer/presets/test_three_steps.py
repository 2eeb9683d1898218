"""Every preset's scaled form really trains."""

import math
from pathlib import Path

import pytest

import trainer.starter
from tests.trainer.tiny import only, read_events, run_trainer
from trainer.config import RunConfig
from trainer.presets.preset import load_preset, preset_names

TEACHER = Path(trainer.starter.__file__).parent / "countdown" / "model"
SHORT = {
    "data": {"num_eval_rows": 0},
    "optim": {"num_steps": 3},
    "evaluation": {"every_steps": 0},
    "checkpoint": {"every_steps": 0},
    "distributed": {"num_threads": 1},
}
HARDLY = "dapo"  # which pays by length, too: rewards differ without a right answer
ALWAYS = {"loss", "reward/mean", "advantage/abs_mean", "grad_norm", "ratio/mean"}


def three_steps_of(name: str, starter: Path) -> RunConfig:
    teacher = {"reference": {"model": str(TEACHER)}}
    return load_preset(name).config(
        model=str(starter / "model"),
        rows=str(starter / "rows.jsonl"),
        scaled=True,
        changes=SHORT | (teacher if name == "distillation" else {}),
    )


def test_three_steps_of_a_scaled_form(hardly_taught, tmp_path):
    check_three_steps(HARDLY, hardly_taught, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_three_steps_of_each_scaled_form(name, starter, tmp_path):
    check_three_steps(name, starter, tmp_path)


def check_three_steps(name: str, starter: Path, tmp_path: Path) -> None:
    config = three_steps_of(name, starter)
    path = tmp_path / "run.json"
    path.write_text(config.model_dump_json())

    done = run_trainer("run", path, "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert events[-1]["type"] == "run_finished"
    steps = only(events, "step_finished")
    assert [event["step"] for event in steps] == [1, 2, 3]
    for event in steps:
        metrics = event["metrics"]
        assert set(metrics) >= ALWAYS
        assert math.isfinite(metrics["loss"])
        assert metrics["grad_norm"] > 0
        assert (metrics["advantage/abs_mean"] > 0) != config.distils
        assert ("kl/max" in metrics) == (config.loss.kl_coef > 0)
        assert "kl/mean" in metrics or event["step"] > 1
        for rule in config.reward.recipe.rules:
            assert f"reward/{rule.name}/mean" in metrics
        assert ("reward/overlong/mean" in metrics) == (
            config.reward.overlong_buffer_tokens > 0
        )
        if config.rollout.dynamic_sampling == "off":
            # a batch cut in n makes n updates, of which the last is n - 1 behind
            updates = config.optim.minibatches * config.optim.updates_per_batch
            assert metrics["staleness/mean"] == (updates - 1) / 2
        else:
            trained = [
                group
                for group in only(events, "group_scored")
                if group["step"] == event["step"] and group["is_trained"]
            ]
            assert 0 < len(trained) <= config.rollout.prompts_per_step
            assert all(group["reward_std"] > 0 for group in trained)
