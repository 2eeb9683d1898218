"""Made-up configurations and scored groups for tests."""

from collections.abc import Sequence
from typing import Any

from trainer.config import RunConfig
from trainer.data import Prompt, Row
from trainer.rewards.scoring import Score
from trainer.types import Group, Rollout, StepScore

Steps = Sequence[tuple[int, float | None]]


def run_config(*rules: str, weights: Sequence[float] = (), **parts: Any) -> RunConfig:
    """A run whose rules have the given names; keyword arguments change its parts."""
    names = rules or ("rule",)
    recipe = {
        "rules": [
            {"name": name, "kind": "length", "weight": weight}
            for name, weight in zip(names, weights or [1.0] * len(names), strict=True)
        ]
    }
    reward = {"recipe": recipe} | parts.pop("reward", {})
    return RunConfig.model_validate(
        {"model": {"path": "-"}, "data": {"rows": "-"}, "reward": reward} | parts
    )


def make_prompt(index: int = 0, **columns: Any) -> Prompt:
    row = Row(index=index, prompt="?", answer=None, columns=columns)
    return Prompt(row=row, text="?", token_ids=(3,))


def make_completion(num_tokens: int = 2, *, limit: int = 4) -> Rollout:
    return Rollout.of_one_turn(
        text="a" * num_tokens,
        token_ids=(3,) * num_tokens,
        logprobs=(-0.5,) * num_tokens,
        end_reason="stop" if num_tokens < limit else "length",
    )


def make_group(
    *rewards: float | None,
    lengths: Sequence[int] = (),
    rules: Sequence[dict[str, float | None]] = (),
    steps: Sequence[Steps] | None = None,
    index: int = 0,
) -> Group:
    """A group with these rewards, all of them by the rule called "rule"."""
    breakdowns = rules or [{"rule": reward} for reward in rewards]
    return Group(
        prompt=make_prompt(index),
        completions=tuple(make_completion(n) for n in lengths or (2,) * len(rewards)),
        scores=tuple(
            Score(reward, parts, {})
            for reward, parts in zip(rewards, breakdowns, strict=True)
        ),
        step_scores=None
        if steps is None
        else tuple(tuple(StepScore(*step) for step in each) for each in steps),
    )
