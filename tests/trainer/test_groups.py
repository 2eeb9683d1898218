"""What a group teaches, and the numbers logged of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.advantages import group_advantages
from trainer.config import AdvantageConfig
from trainer.groups import Completion, Group, advantages_of, reward_std, signal_of
from trainer.metrics import completion_metrics, reward_metrics, signal_metrics
from trainer.prompts import Prompt, Row
from trainer.rewards.scoring import Score
from trainer.rewards.spec import Recipe


def group(*rewards: float | None, lengths: tuple[int, ...] = ()) -> Group:
    row = Row(index=0, prompt="?", answer=None, columns={})
    sizes = lengths or (2,) * len(rewards)
    return Group(
        prompt=Prompt(row=row, text="?", token_ids=(3,)),
        completions=tuple(
            Completion(
                text="a",
                token_ids=(3,) * size,
                logprobs=(-0.5,) * size,
                end_reason="length" if size > 3 else "stop",
            )
            for size in sizes
        ),
        scores=tuple(Score(r, {"rule": r}, {}) for r in rewards),
    )


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ((0.0, 1.1), "mixed"),
        ((0.0, None, 0.5), "mixed"),
        ((0.1 + 0.2 + 0.8, 1.1), "all_right"),  # rounding is no difference to learn
        ((1.1, 1.1, None), "all_right"),
        ((0.0, 0.0), "all_wrong"),
        ((0.5, 0.5), "tied"),
        ((None, None), "unscorable"),
    ],
)
def test_signals(rewards: tuple[float | None, ...], signal: str) -> None:
    assert signal_of(group(*rewards), bounds=(0.0, 1.1)) == signal


def test_shares_of_groups_add_up() -> None:
    signals = ["mixed", "all_right", "all_wrong", "tied"]

    metrics = signal_metrics(signals)  # type: ignore[arg-type]

    assert metrics["group/frac_zero_std"] == 0.75
    assert metrics["group/frac_all_max"] == metrics["group/frac_all_min"] == 0.25
    assert metrics["group/frac_tied"] == 0.25
    assert metrics["group/num_effective"] == 1


RECIPE = Recipe.model_validate({"rules": [{"name": "rule", "kind": "length"}]})


def test_spread_within_groups_is_not_that_of_the_batch() -> None:
    metrics = reward_metrics(
        [group(0.0, 0.0), group(5.0, 5.0)],
        RECIPE,
        ddof=0,
    )

    assert metrics["reward/mean"] == 2.5
    assert metrics["reward/std"] == 2.5
    assert metrics["group/std_mean"] == 0.0
    assert metrics["reward/rule/mean"] == 2.5


def test_nothing_scored_gives_no_numbers() -> None:
    metrics = reward_metrics([group(None, None)], RECIPE, ddof=1)

    assert set(metrics.values()) == {None}
    assert reward_std(group(None, None), ddof=1) is None


def test_cut_completions_are_counted() -> None:
    metrics = completion_metrics([group(1.0, 1.0, lengths=(4, 2))])

    assert metrics["completion/mean_length"] == 3
    assert metrics["completion/frac_truncated"] == 0.5


@pytest.mark.parametrize("combine", ["sum_then_normalize", "normalize_then_sum"])
def test_one_rule_gives_the_same_advantages_either_way(combine: Any) -> None:
    groups = [group(1.0, 0.0, None, 0.5), group(0.2, 0.2, 0.2, 0.2)]

    found = advantages_of(groups, RECIPE, AdvantageConfig(combine=combine))

    rewards = torch.tensor([[1.0, 0.0, torch.nan, 0.5], [0.2] * 4]).double()
    assert torch.allclose(found, group_advantages(rewards, AdvantageConfig()))


def test_penalties_come_off_the_reward() -> None:
    config = AdvantageConfig(baseline="none", scale="none")
    penalties = torch.tensor([[0.25, 0.5]], dtype=torch.float64)

    found = advantages_of([group(1.0, 1.5)], RECIPE, config, penalties=penalties)

    assert found.tolist() == [[0.75, 1.0]]
