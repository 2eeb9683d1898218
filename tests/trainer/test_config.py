"""What a run's loop cannot honour is refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.config import RunConfig, read_config


def tree(**parts: Any) -> dict[str, Any]:
    rule = {"name": "length", "kind": "length", "params": {}}
    return {
        "model": {"path": "m"},
        "data": {"rows": "r"},
        "reward": {"recipe": {"rules": [rule]}},
    } | parts


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"advantage": {"credit": "process"}}, "reasoning step"),
        ({"loss": {"kl_estimator": "full"}}, "whole vocabulary"),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"combine": "normalize_then_sum"},
            },
            "never sums rewards",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"scale": "mean"},
            },
            "must not be negative",
        ),
        (
            {
                "loss": {"kl_in": "reward", "kl_coef": 0.1},
                "advantage": {"credit": "ones"},
            },
            "never looks at rewards",
        ),
        (
            {"loss": {"kl_coef": 0.1}, "reference": {"kind": "none"}},
            "needs a reference model",
        ),
        ({"optim": {"num_steps": 5, "warmup_steps": 5}}, "leaves nothing"),
    ],
)
def test_settings_that_contradict_are_refused(
    parts: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        RunConfig.model_validate(tree(**parts))


def test_mean_scale_needs_a_recipe_that_is_never_negative() -> None:
    rule = {"name": "length", "kind": "length", "weight": -1.0, "params": {}}

    with pytest.raises(ValueError, match="this recipe can give -1"):
        RunConfig.model_validate(
            tree(reward={"recipe": {"rules": [rule]}}, advantage={"scale": "mean"})
        )


def test_a_constant_divisor_is_the_longest_completion_by_default() -> None:
    config = RunConfig.model_validate(tree(rollout={"max_new_tokens": 77}))

    assert config.loss_of_run.constant_length == 77


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("run.toml", "[model\n", "is not valid toml"),
        ("run.json", "{", "is not valid json"),
        ("run.toml", "[model]\npath = 'm'\n", "data: Field required"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ValueError, match=complaint):
        read_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.toml cannot be read"):
        read_config(tmp_path / "run.toml")
