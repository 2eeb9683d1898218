"""Stopped anywhere and resumed, a run of any kind equals one that never stopped."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.run.test_resume import story, untimed
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
)

SHORT = {
    "recipe": {"rules": [{"name": "short", "kind": "length", "params": {"maximum": 6}}]}
}
FROZEN_START = {
    "rollout": {"source": "start"},
    "advantage": {"credit": "indicator"},
    "loss": {"surrogate": "reinforce", "kl_coef": 0.02},
}
ONE_STEP_OFF = {
    "rollout": {"one_step_off": True},
    "loss": {"importance_correction": "token_truncate", "kl_coef": 0.05},
}
POOLS = {"kind": "pools", "unseen_weight": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adaptive-kl-and-reset-reference": {
        "loss": {"kl_coef": 0.05, "kl_target": 0.5, "kl_horizon": 200},
        "reference": {"reset_every_steps": 2},
        "optim": {"reset_every_steps": 5},
    },
    "mixed-reference": {
        "loss": {"kl_coef": 0.05},
        "reference": {"mix_every_steps": 2, "mix_alpha": 0.3},
    },
    "teacher": {
        "advantage": {"weight": 0},
        "loss": {"kl_coef": 1.0, "kl_ratio": True},
        "reference": {"model": "teacher"},
    },
    "refill": {
        "reward": SHORT,
        "rollout": {"dynamic_sampling": "refill", "max_refills": 2},
    },
    "phases": {
        "loss": {"kl_coef": 0.05},
        "phases": [
            {"name": "one", "num_steps": 2},
            {"name": "two", "num_steps": 2, "changes": FROZEN_START},
            {"name": "three", "num_steps": 2, "changes": {"loss": {"kl_coef": 0.1}}},
        ],
    },
    "lora": {"model": {"lora_rank": 4}, "loss": {"kl_coef": 0.05}},
    "lora-phases": {
        "model": {"lora_rank": 4},
        "loss": {"kl_coef": 0.05},
        "phases": [
            {"name": "one", "num_steps": 2},
            {"name": "two", "num_steps": 4, "changes": FROZEN_START},
        ],
    },
    "lora-over-four-bits": {
        "model": {"lora_rank": 4, "quantization": "4bit"},
        "loss": {"kl_coef": 0.05},
        "optim": {"optimizer": "adamw_8bit"},
    },
    "eight-bit-moments": {"optim": {"optimizer": "adamw_8bit"}},
    "minibatches": {"optim": {"minibatches": 2}},
    "one-step-off": ONE_STEP_OFF,
    "one-step-off-refill": ONE_STEP_OFF
    | {
        "reward": SHORT,
        "rollout": {
            "one_step_off": True,
            "dynamic_sampling": "refill",
            "max_refills": 2,
        },
    },
    "one-step-off-lora-over-four-bits": ONE_STEP_OFF
    | {"model": {"lora_rank": 4, "quantization": "4bit"}},
    "one-step-off-phases": ONE_STEP_OFF
    | {
        "phases": [
            {"name": "one", "num_steps": 3},
            {"name": "two", "num_steps": 3, "changes": FROZEN_START},
        ],
    },
    "entropy-control": {
        "loss": {
            "entropy_target": 3.5,
            "top_entropy_share": 0.3,
            "covariance": "clip",
            "covariance_share": 0.1,
            "covariance_low": 0.01,
        },
        "optim": {"minibatches": 2},
    },
    "kl-covariance": {"loss": {"covariance": "kl", "covariance_share": 0.1}},
    "curriculum": ONE_STEP_OFF
    | {
        "reward": SHORT,
        "rollout": {
            "one_step_off": True,
            "dynamic_sampling": "refill",
            "max_refills": 2,
        },
        "curriculum": {"kind": "target", "drop_after": 1, "recheck_every": 2},
    },
    "curriculum-phases": {
        "curriculum": {"kind": "learnability"},
        "phases": [
            {"name": "one", "num_steps": 2},
            {"name": "two", "num_steps": 4, "changes": {"curriculum": POOLS}},
        ],
    },
    "scored-by-workers": {"reward": {"num_workers": 2}},
}

SEVERAL = (2, 64)  # passes, and micro-batches in each: what holds most to be kept
# A changing reference with a KL controller, and a batch sampled ahead in rounds.
SOME = {
    "adaptive-kl-and-reset-reference",
    "curriculum",
    "entropy-control",
    "one-step-off-refill",
    "teacher",
}


def marks(variant: str, sizes: tuple[int, int]) -> list[pytest.MarkDecorator]:
    if sizes == SEVERAL:
        return [] if variant in SOME else [pytest.mark.slow]
    return [pytest.mark.slow, *([] if variant == "plain" else [pytest.mark.soak])]


CASES = [
    pytest.param(passes, tokens, variant, marks=marks(variant, sizes=(passes, tokens)))
    for passes, tokens in itertools.product([1, 2], [100_000, 64])
    for variant in VARIANTS
]


@pytest.mark.parametrize(("passes", "micro_batch_tokens", "variant"), CASES)
def test_resumed_after_any_step_it_ends_the_same(
    passes, micro_batch_tokens, variant, model_folder, rows_path, tmp_path
):
    parts = dict(VARIANTS[variant])
    phases = parts.pop("phases", None)
    optim = {
        "num_steps": 6,
        "schedule": "cosine",
        "updates_per_batch": passes,
        "micro_batch_tokens": micro_batch_tokens,
    }
    tree = config_tree(
        model_folder,
        rows_path,
        **parts | {"optim": optim | parts.get("optim", {})},
        checkpoint={"every_steps": 1, "keep_last": 10},
    )
    if phases is not None:
        tree["phases"] = phases
    if "model" in tree.get("reference", {}):
        write_model(tmp_path / "teacher", seed=3)
        tree["reference"]["model"] = str(tmp_path / "teacher")
    config = write_config(tmp_path, tree)
    done = run_trainer("run", config, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    for step in (2, 5) if phases else (3,):  # at a phase's end and within one
        out = tmp_path / f"resumed-{step}"
        done = run_trainer(
            "run",
            config,
            "--out",
            out,
            "--attempt",
            2,
            "--resume-from",
            tmp_path / "whole" / "checkpoints" / f"step-{step:06d}-attempt-1",
        )

        assert done.returncode == 0, done.stderr
        assert story(out / "events.jsonl") == story(
            tmp_path / "whole" / "events.jsonl", after=step
        )
        assert contents(out, attempt=2) == contents(tmp_path / "whole", attempt=1)


def contents(out: Path, *, attempt: int) -> dict[str, bytes]:
    """All that the last checkpoint holds, but for which life it was saved in."""
    folder = out / "checkpoints" / f"step-000006-attempt-{attempt}"
    named = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {"optimizer.safetensors", "controllers.json"} <= named.keys()
    return {k: v for k, v in named.items() if k not in ("state.json", "manifest.json")}


def test_the_variants_do_what_they_are_named_for(trained):
    """Else their equality would say little."""
    data = {}
    for variant in ("adaptive-kl-and-reset-reference", "refill"):
        out = trained(**VARIANTS[variant] | {"optim": {"num_steps": 6}})
        events = only(read_events(out / "events.jsonl"), "step_finished")
        data[variant] = [event["metrics"] for event in events]

    adaptive = data["adaptive-kl-and-reset-reference"]
    assert len({metrics["kl/coef"] for metrics in adaptive}) > 3
    assert [m["kl/mean"] < 1e-6 for m in adaptive] == [True, False] * 3
    refilled = data["refill"]
    assert max(metrics["sampling/num_rounds"] for metrics in refilled) > 1
    assert all(
        metrics["group/num_effective"] <= 4  # prompts a step
        for metrics in refilled
    )


def test_a_warning_comes_once_and_at_the_same_step_after_a_resume(
    model_folder, rows_path, tmp_path, capsys
):
    """Resumed while the condition holds, before and after it warns at step 10."""
    tree = config_tree(
        model_folder,
        rows_path,
        rollout={"max_new_tokens": 3},
        optim={"num_steps": 13, "learning_rate": 1e-6},
        checkpoint={"every_steps": 6},
    )
    config, out = write_config(tmp_path, tree), tmp_path / "out"
    run_trainer("run", config, "--out", out)
    assert "warning at step 10: " in capsys.readouterr().out
    warned = [untimed(w) for w in only(read_events(out / "events.jsonl"), "warned")]
    assert ("truncated", 10) in [(w["code"], w["step"]) for w in warned]

    for step in (6, 12):
        checkpoint = out / "checkpoints" / f"step-{step:06d}-attempt-1"
        resumed = tmp_path / f"from-{step}"
        run_trainer("run", config, "--out", resumed, "--resume-from", checkpoint)

        again = only(read_events(resumed / "events.jsonl"), "warned")
        assert [untimed(w) for w in again] == [w for w in warned if w["step"] > step]


def test_a_checkpoint_of_before_the_one_list_of_rules_is_resumed(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, optim={"num_steps": 3})
    config, out = write_config(tmp_path, tree), tmp_path / "out"
    run_trainer("run", config, "--out", out)
    checkpoint = out / "checkpoints" / "step-000002-attempt-1"
    path = checkpoint / "controllers.json"
    state = json.loads(path.read_text())
    del state["alerts"]
    state["alarms"] = {"ringing": ["kl"], "first": {"entropy": [1.0]}, "recent": {}}
    path.write_text(json.dumps(state))
    (checkpoint / "manifest.json").write_text('{"files": {}}')

    done = run_trainer(
        "run", config, "--out", tmp_path / "resumed", "--resume-from", checkpoint
    )

    assert done.returncode == 0, done.stderr
