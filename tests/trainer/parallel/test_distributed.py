"""Several processes train as one does: same completions, same losses, same weights."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.run.test_resume import story
from tests.trainer.several import run_several
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
)
from trainer.model.token_values import NAMES

# Sums in another order round otherwise, and updates carry that on.
CLOSE = {"rel": 1e-6, "abs": 1e-6}
# A single token's value is less of a sum, and a deviation may divide it.
NEAR = {"rel": 1e-5, "abs": 1e-5}
SUMS = ("loss", "grad_norm", "reward/", "completion/", "lr", "eval/")
KL = {"loss": {"kl_coef": 0.05}}
STEPS = {
    "recipe": {
        "rules": [{"name": "short", "kind": "length", "params": {"maximum": 6}}]
    },
    "step_recipe": {
        "rules": [{"name": "brief", "kind": "length", "params": {"maximum": 3}}]
    },
    "step_pattern": "[0-9]+",
}
NUMBERS: dict[str, tuple[Collection[str], Any]] = {
    "group_scored": (("advantage", "mean_logprob"), NEAR),
    # told in five digits, of which the last may be another
    "tokens_measured": (set(NAMES) - {"clipped"}, {"rel": 2e-4, "abs": 1e-5}),
}
OFTEN = {"optim": {"minibatches": 2, "updates_per_batch": 2}}
VARIANTS: dict[str, dict[str, Any]] = {
    "minibatches-and-passes": OFTEN | KL,
    # a deviation of KLs alone, where rewards are equal, would be of rounding
    "kl-in-reward": {
        "loss": {"kl_coef": 0.05, "kl_in": "reward"},
        "advantage": {"scale": "none"},
    },
    "full-kl": {"loss": {"kl_coef": 0.05, "kl_estimator": "full"}},
    "adaptive-kl": {"loss": {"kl_coef": 0.05, "kl_target": 0.5, "kl_horizon": 200}},
    "reset-reference": KL | {"reference": {"reset_every_steps": 2}},
    "mix-reference": KL | {"reference": {"mix_every_steps": 1, "mix_alpha": 0.3}},
    "teacher": {
        "advantage": {"weight": 0},
        "loss": {"kl_coef": 1.0, "kl_ratio": True},
        "reference": {"model": "teacher"},
    },
    "privileged-context": {
        "advantage": {"weight": 0},
        "loss": {"kl_coef": 1.0, "kl_ratio": True},
        "reference": {
            "kind": "frozen",
            "mix_every_steps": 1,
            "context": "best_of_group",
            "context_threshold": 0.5,
        },
    },
    "process-credit": {"advantage": {"credit": "process"}, "reward": STEPS},
    "by-length": OFTEN
    | {
        "advantage": {
            "baseline": "length_weighted",
            "whiten": "tokens",
            "weight": 0.5,
        },
    },
    "pass-at-k": OFTEN
    | {
        "reward": {"recipe": STEPS["recipe"]},
        "rollout": {"dynamic_sampling": "drop"},
        "advantage": {"credit": "pass_at_k_analytic", "pass_k": 2},
    },
    "preferences": {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce"},
        "optim": {"minibatches": 2, "updates_per_batch": 2},
    },
    "refill": {
        "reward": {"recipe": STEPS["recipe"]},
        "rollout": {"dynamic_sampling": "refill", "max_refills": 2},
    },
    "curriculum": {
        "curriculum": {"kind": "target", "drop_after": 1, "recheck_every": 2},
        "rollout": {"dynamic_sampling": "refill"},
        "reward": {"recipe": STEPS["recipe"]},
    },
    "drop": {
        "reward": {"recipe": STEPS["recipe"]},
        "rollout": {"dynamic_sampling": "drop"},
    },
    # a process may have nothing but completions that are masked
    "masked-sequences": {
        "loss": {
            "surrogate": "gspo",
            "mask_truncated": True,
            "aggregation": "sequence_mean_token_mean",
        },
    },
    "entropy-control": OFTEN
    | {
        "loss": {
            "entropy_target": 3.5,
            "top_entropy_share": 0.3,
            "covariance": "clip",
            "covariance_share": 0.1,
            "covariance_low": 0.01,
            "mask_truncated": True,
        }
    },
    "kl-covariance": {
        "loss": {
            "covariance": "kl",
            "covariance_share": 0.1,
            "top_entropy_share": 0.5,
        },
        # of many updates without clipping, which carry on more rounding
        "optim": OFTEN["optim"] | {"learning_rate": 1e-5},
    },
    "lora": KL | {"model": {"lora_rank": 4}},
    "gradient-checkpointing": {"model": {"gradient_checkpointing": True}},
    # the adapters' base is the reference while the whole copy is sampled from
    "one-step-off-lora": {
        "model": {"lora_rank": 4},
        "rollout": {"one_step_off": True},
        "loss": {"kl_coef": 0.05, "importance_correction": "token_truncate"},
    },
    "start": {
        "rollout": {"source": "start"},
        "advantage": {"credit": "indicator"},
        "loss": {"surrogate": "reinforce"},
    },
}


def tree_of(model: Path, rows: Path, /, **parts: dict[str, Any]) -> dict[str, Any]:
    """A rate at which rounding stays rounding: AdamW turns a gradient of 1e-9 that is
    all rounding into a whole step."""
    parts["optim"] = {"learning_rate": 1e-4} | parts.get("optim", {})
    parts["logging"] = {"tokens_every_steps": 2}
    return config_tree(model, rows, **parts)


def alone(config: Path, name: str, *arguments: object) -> Path:
    out = config.parent / name
    done = run_trainer("run", config, "--out", out, *arguments)
    assert done.returncode == 0, done.stderr
    return out


def together(config: Path, name: str, *arguments: object, count: int = 2) -> Path:
    out = config.parent / name
    codes, output = run_several(
        count,
        "run",
        config,
        "--out",
        out,
        *arguments,
        output=config.parent / f"{name}.log",
    )
    assert codes == [0] * count, output
    return out


def sums(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(SUMS)}


def numbers(values: Any) -> list[float]:
    """A number, a list of some or neither, null as NaN."""
    every = values if isinstance(values, list) else [values]
    return [math.nan if value is None else value for value in every]


def assert_same_story(out: Path, other: Path, *, after: int = 0) -> None:
    """Completions token for token, numbers as far as rounding lets them."""
    ours = story(out / "events.jsonl", after=after)
    theirs = story(other / "events.jsonl", after=after)
    assert len(ours) == len(theirs) > 3
    for event, expected in zip(ours, theirs, strict=True):
        if event["type"] == "mismatch_measured":
            assert_same_gaps(event, expected)
            continue
        metrics, alike = event.pop("metrics", {}), expected.pop("metrics", {})
        assert metrics == pytest.approx(alike, **NEAR)
        assert sums(metrics) == pytest.approx(sums(alike), **CLOSE)
        completions = event.pop("completions", [])
        names, near = NUMBERS.get(event["type"], ((), {}))
        for one, like in zip(completions, expected.pop("completions", []), strict=True):
            for name in names:
                assert numbers(one.pop(name, None)) == pytest.approx(
                    numbers(like.pop(name, None)), nan_ok=True, **near
                )
            assert one == like
        assert event == expected


def assert_same_gaps(event: dict[str, Any], expected: dict[str, Any]) -> None:
    """Of most runs they are rounding alone, so a count may be on an edge's other
    side."""
    for part in ("sums", "positions", "probabilities"):
        for name, values in event.pop(part).items():
            assert numbers(values) == pytest.approx(
                numbers(expected[part][name]), rel=2e-3, abs=2e-4, nan_ok=True
            )
    advantages = numbers(event.pop("advantages"))
    assert advantages == pytest.approx(numbers(expected["advantages"]), **NEAR)
    for part in ("gaps", "differences"):
        assert np.sum(event.pop(part)) == np.sum(expected[part])
    assert event == {name: expected[name] for name in event}


@pytest.fixture(scope="module")
def config(tmp_path_factory, model_folder, rows_path) -> Path:
    tree = tree_of(model_folder, rows_path, **KL)
    return write_config(tmp_path_factory.mktemp("several"), tree)


@pytest.fixture(scope="module")
def one(config) -> Path:
    return alone(config, "one")


@pytest.fixture(scope="module")
def two(config) -> Path:
    return together(config, "two")


@pytest.mark.slow
def test_two_processes_train_as_one_does(one, two):
    assert_same_story(two, one)


@pytest.mark.slow
def test_only_a_run_of_several_processes_tells_of_ranks(one, two):
    steps = len(only(read_events(two / "events.jsonl"), "step_finished"))

    assert len(only(read_events(two / "events.jsonl"), "ranks_measured")) == steps > 0
    assert not only(read_events(one / "events.jsonl"), "ranks_measured")


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_has_the_form_of_one(one, two):
    name = Path("checkpoints") / "step-000002-attempt-1"
    files = {path.relative_to(one / name) for path in (one / name).rglob("*")}
    assert files == {path.relative_to(two / name) for path in (two / name).rglob("*")}

    for file in ("model/model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(two / name / file), load_file(one / name / file)

        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            assert tensor.dtype == theirs[key].dtype
            assert tensor.shape == theirs[key].shape


@pytest.mark.slow
def test_a_process_continues_from_a_checkpoint_of_two(config, two):
    checkpoint = two / "checkpoints" / "step-000002-attempt-1"

    out = alone(config, "one-from-two", "--resume-from", checkpoint)

    assert_same_story(out, two, after=2)


@pytest.mark.slow
def test_two_processes_continue_from_a_checkpoint_of_one(config, one):
    checkpoint = one / "checkpoints" / "step-000002-attempt-1"

    out = together(config, "two-from-one", "--resume-from", checkpoint)

    assert_same_story(out, one, after=2)


@pytest.mark.slow
def test_three_sequences_on_two_processes(model_folder, rows_path, tmp_path):
    """Neither prompts nor micro-batches come out even."""
    tree = tree_of(
        model_folder,
        rows_path,
        rollout={"prompts_per_step": 1, "group_size": 3, "max_new_tokens": 12},
        optim={"num_steps": 3, "micro_batch_tokens": 16},
        evaluation={"every_steps": 0},
    )
    config = write_config(tmp_path, tree)

    assert_same_story(together(config, "two"), alone(config, "one"))


@pytest.mark.slow
def test_two_processes_sample_ahead_as_one_does(model_folder, rows_path, tmp_path):
    """What both their threads ask of the other process does not cross."""
    tree = tree_of(
        model_folder,
        rows_path,
        reward={"recipe": STEPS["recipe"]},
        rollout={
            "one_step_off": True,
            "dynamic_sampling": "refill",
            "max_refills": 2,
        },
        loss={"importance_correction": "token_truncate"},
        # of twice as many updates, which carry on twice as much rounding
        optim={"minibatches": 2, "learning_rate": 1e-5},
        checkpoint={"every_steps": 2},
    )
    config = write_config(tmp_path, tree)

    one, two = alone(config, "one"), together(config, "two")

    assert_same_story(two, one)
    checkpoint = two / "checkpoints" / "step-000002-attempt-1"
    again = alone(config, "one-from-two", "--resume-from", checkpoint)
    assert_same_story(again, one, after=2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_processes_train_as_one_does_in_any_kind_of_run(
    variant, model_folder, rows_path, tmp_path
):
    tree = tree_of(model_folder, rows_path, **VARIANTS[variant])
    if variant == "teacher":
        tree["reference"] = {"model": str(write_model(tmp_path / "teacher", seed=3))}
    config = write_config(tmp_path, tree)

    assert_same_story(together(config, "two"), alone(config, "one"))


@pytest.mark.slow
def test_adapters_of_two_processes_are_resumed_by_one(
    model_folder, rows_path, tmp_path
):
    config = write_config(
        tmp_path, tree_of(model_folder, rows_path, **VARIANTS["lora"])
    )
    two = together(config, "two")
    checkpoint = two / "checkpoints" / "step-000004-attempt-1"

    one = alone(config, "one-from-two", "--resume-from", checkpoint)

    assert_same_story(one, two, after=4)


@pytest.mark.slow
@pytest.mark.parametrize("began", ["alone", "together"])
def test_a_reference_that_moved_is_handed_on(began, model_folder, rows_path, tmp_path):
    config = write_config(
        tmp_path, tree_of(model_folder, rows_path, **VARIANTS["mix-reference"])
    )
    begin, go_on = (alone, together) if began == "alone" else (together, alone)
    first = begin(config, "first")
    checkpoint = first / "checkpoints" / "step-000002-attempt-1"

    second = go_on(config, "second", "--resume-from", checkpoint)

    assert (checkpoint / "reference" / "weights.safetensors").exists()
    assert_same_story(second, first, after=2)


@pytest.mark.slow
@pytest.mark.parametrize("began", ["alone", "together"])
def test_float32_masters_of_bfloat16_weights_are_handed_on(
    began, model_folder, rows_path, tmp_path
):
    """Else each hand-over would round away what the updates have added up."""
    tree = tree_of(
        model_folder,
        rows_path,
        model={"dtype": "bfloat16"},
        optim={"num_steps": 2},
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 1},
    )
    begin, go_on = (alone, together) if began == "alone" else (together, alone)
    first = begin(write_config(tmp_path / "first", tree), "out")
    first /= "checkpoints/step-000002-attempt-1"
    tree["optim"] |= {"num_steps": 3, "learning_rate": 1e-12}

    second = go_on(
        write_config(tmp_path / "second", tree), "out", "--resume-from", first
    )

    second /= "checkpoints/step-000003-attempt-1"
    before, after = (masters(checkpoint) for checkpoint in (first, second))
    assert len(before) > 20
    assert any(not torch.equal(t, t.bfloat16().float()) for t in before.values())
    for name, master in after.items():
        assert master.dtype == torch.float32
        assert torch.allclose(master, before[name], rtol=1e-6, atol=1e-9)
    weights = [load_file(c / "model/model.safetensors") for c in (first, second)]
    assert all(torch.equal(weights[0][name], w) for name, w in weights[1].items())


def masters(checkpoint: Path) -> dict[str, torch.Tensor]:
    saved = load_file(checkpoint / "optimizer.safetensors")
    return {name: t for name, t in saved.items() if name.endswith(".master")}
