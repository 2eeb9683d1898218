"""The methods of arXiv:2402.03300's unified view, each through the one loop.

What tells them apart is the gradient coefficient: the gradient is the mean over tokens
of coefficient · ∇ log π. It is read off here where the loss meets the log-probs, in
real steps of a tiny model, and compared with the method's own formula.
"""

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.grpo
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.algorithm.loss import objective

TOKEN = re.compile("<pad>|.", re.DOTALL)


@dataclass
class Seen:
    """One micro-batch of one update, as the loss met it."""

    logprobs: torch.Tensor
    reference: torch.Tensor | None
    mask: torch.Tensor
    advantages: torch.Tensor
    divisor: int

    @property
    def coefficients(self) -> torch.Tensor:
        """[N], of the tokens: -∂loss/∂log π times the number of tokens."""
        assert self.logprobs.grad is not None
        return -self.logprobs.grad[self.mask > 0] * self.divisor

    @property
    def expanded_advantages(self) -> torch.Tensor:
        given = self.advantages
        if given.ndim == 1:
            given = given[:, None]
        return given.expand_as(self.mask)[self.mask > 0]


@pytest.fixture
def seen(monkeypatch) -> list[Seen]:
    found: list[Seen] = []

    def watch(*given: Any, **named: Any) -> Any:
        logprobs, _, advantages, mask, _, reference = given
        logprobs.retain_grad()
        found.append(
            Seen(logprobs, reference, mask, advantages, named["totals"].num_tokens)
        )
        return objective(*given, **named)

    monkeypatch.setattr(trainer.grpo, "objective", watch)
    return found


SHORT = {
    "recipe": {"rules": [{"name": "short", "kind": "length", "params": {"maximum": 6}}]}
}


def run(folder: Path, model: Path, rows: Path, **parts: Any) -> list[dict[str, Any]]:
    optim = {"num_steps": 3, "micro_batch_tokens": 100_000} | parts.pop("optim", {})
    reward = parts.pop("reward", SHORT)
    tree = config_tree(model, rows, optim=optim, reward=reward, **parts)
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return read_events(folder / "out" / "events.jsonl")


def texts(events: list[dict[str, Any]], *, step: int) -> list[str]:
    groups = [g for g in only(events, "group_scored") if g["step"] == step]
    return [c["text"] for group in groups for c in group["completions"]]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [e["metrics"]["loss"] for e in only(events, "step_finished")]


def test_sft_pulls_every_token_of_the_dataset_alike(seen, model_folder, tmp_path):
    rows = tmp_path / "rows.jsonl"
    learned = [f"{n}{n}" for n in range(12)]
    rows.write_text(
        "".join(
            json.dumps({"prompt": f"{n}=", "columns": {"completion": text}}) + "\n"
            for n, text in enumerate(learned)
        )
    )

    events = run(
        tmp_path,
        model_folder,
        rows,
        rollout={"source": "dataset", "group_size": 1},
        advantage={"credit": "ones"},
        loss={"surrogate": "reinforce"},
    )

    for each in seen:
        torch.testing.assert_close(
            each.coefficients, torch.ones_like(each.coefficients)
        )
    assert len(seen) == 3
    assert set(texts(events, step=1)) <= set(learned)
    means = [-each.logprobs[each.mask > 0].mean().item() for each in seen]
    assert losses(events) == pytest.approx(means, rel=1e-5)
    assert losses(events)[2] < losses(events)[0]


def rft(source: str, rate: float) -> dict[str, Any]:
    return {
        "rollout": {"source": source},
        "advantage": {"credit": "indicator"},
        "loss": {"surrogate": "reinforce"},
        "optim": {"learning_rate": rate},
    }


@pytest.mark.parametrize("source", ["start", "policy"])
def test_rejection_sampling_pulls_right_completions_and_no_others(
    source, seen, model_folder, rows_path, tmp_path
):
    events = run(tmp_path, model_folder, rows_path, **rft(source, 1e-2))

    for step, each in enumerate(seen, start=1):
        right = [len(text) <= 6 for text in texts(events, step=step)]
        # one row of a micro-batch is one completion
        found = each.advantages.tolist()
        assert sorted(found) == sorted(float(value) for value in right)
        torch.testing.assert_close(each.coefficients, each.expanded_advantages)
    assert {0.0, 1.0} == {a for each in seen for a in each.advantages.tolist()}


def test_rft_samples_from_the_model_it_started_from_and_online_rft_does_not(
    model_folder, rows_path, tmp_path
):
    data = {}
    for source, rate in (("start", 1e-9), ("start", 3e-2), ("policy", 3e-2)):
        folder = tmp_path / f"{source}-{rate}"
        events = run(folder, model_folder, rows_path, **rft(source, rate))
        data[source, rate] = [texts(events, step=step) for step in (1, 3)]

    still = data["start", 1e-9]  # as it began
    assert data["start", 3e-2] == still
    assert data["policy", 3e-2][0] == still[0]
    assert data["policy", 3e-2][1] != still[1]


@pytest.mark.slow
def test_rft_counts_the_updates_since_its_samples(model_folder, rows_path, tmp_path):
    for source, expected in (("start", [0.5, 2.5, 4.5]), ("policy", [0.5, 0.5, 0.5])):
        parts = rft(source, 1e-3)
        parts["optim"]["updates_per_batch"] = 2
        events = run(tmp_path / source, model_folder, rows_path, **parts)

        steps = only(events, "step_finished")
        assert [s["metrics"]["staleness/mean"] for s in steps] == expected


def test_grpo_by_outcome_adds_the_references_pull_to_the_advantage(
    seen, model_folder, rows_path, tmp_path
):
    events = run(tmp_path, model_folder, rows_path, loss={"kl_coef": 0.04})

    groups = [g for g in only(events, "group_scored") if g["step"] == 3]
    values = [c["advantage"] for group in groups for c in group["completions"]]
    assert sorted(seen[2].advantages.tolist()) == pytest.approx(
        sorted(values), abs=1e-6
    )
    for each in seen:
        _check_outcome_coefficient(each, beta=0.04)
    gaps = seen[2].reference - seen[2].logprobs
    assert gaps.abs().max() > 0.1  # the reference did pull


def _check_outcome_coefficient(each: Seen, *, beta: float) -> None:
    assert each.reference is not None
    inside = each.mask > 0
    pull = torch.expm1(each.reference[inside] - each.logprobs[inside].detach())
    expected = each.expanded_advantages + beta * pull
    torch.testing.assert_close(each.coefficients, expected, rtol=1e-4, atol=1e-5)


def test_grpo_by_process_sums_later_steps(seen, model_folder, rows_path, tmp_path):
    pattern = "[e-h0-4]"
    steps = {"name": "calm", "kind": "length", "params": {"maximum": 2}}
    tree_reward = SHORT | {"step_recipe": {"rules": [steps]}, "step_pattern": pattern}

    events = run(
        tmp_path,
        model_folder,
        rows_path,
        reward=tree_reward,
        advantage={"credit": "process"},
        loss={"kl_coef": 0.04},
    )

    for step, each in enumerate(seen, start=1):
        _check_outcome_coefficient(each, beta=0.04)
        groups = [g for g in only(events, "group_scored") if g["step"] == step]
        expected = [
            tokens for group in groups for tokens in _credit_of_steps(group, pattern)
        ]
        # a micro-batch is padded on the right and sorted by length
        found = [
            row[inside > 0].tolist()
            for row, inside in zip(each.advantages, each.mask, strict=True)
        ]
        assert len(found) == len(expected) == 16
        assert rounded(found) == rounded(expected)


def rounded(rows: list[list[float]]) -> list[list[float]]:
    """Sorted, so that rows in another order can be compared."""
    return sorted([round(value, 3) + 0.0 for value in row] for row in rows)


def _credit_of_steps(group: dict[str, Any], pattern: str) -> list[list[float]]:
    """Each completion's token advantages, by arXiv:2402.03300, section 4.1.3.

    Characters are tokens here, and the end token belongs to the last step.
    """
    cut = [_steps_of(c["text"], pattern) for c in group["completions"]]
    rewards = [
        [float(len(step) <= 2) for step in steps[:-1]]
        + [float(len(steps[-1]) <= 2) + completion["reward"]]
        for steps, completion in zip(cut, group["completions"], strict=True)
    ]
    pooled = [reward for each in rewards for reward in each]
    spread = statistics.stdev(pooled) + 1e-4
    mean = statistics.fmean(pooled)
    credit = []
    for completion, steps, given in zip(
        group["completions"], cut, rewards, strict=True
    ):
        owner = [index for index, step in enumerate(steps) for _ in TOKEN.findall(step)]
        owner += [len(steps) - 1] * (completion["num_tokens"] - len(owner))
        normal = [(reward - mean) / spread for reward in given]
        credit.append([sum(normal[index:]) for index in owner])
    return credit


def _steps_of(text: str, pattern: str) -> list[str]:
    steps = [""]
    for character in text:
        steps[-1] += character
        if re.fullmatch(pattern, character) and steps[-1].strip():
            steps.append("")
    if not steps[-1].strip() and len(steps) > 1:
        steps[-2:] = [steps[-2] + steps[-1]]
    return steps


def test_dpo_pulls_a_groups_best_up_and_its_worst_down(
    seen, model_folder, rows_path, tmp_path
):
    beta = 0.5
    events = run(
        tmp_path,
        model_folder,
        rows_path,
        advantage={"credit": "preference", "preference_beta": beta},
        loss={"surrogate": "reinforce"},
        reference={"kind": "frozen"},
    )

    for step, each in enumerate(seen, start=1):
        groups = [g for g in only(events, "group_scored") if g["step"] == step]
        values = [c["advantage"] for group in groups for c in group["completions"]]
        torch.testing.assert_close(each.coefficients, each.expanded_advantages)
        assert sorted(each.advantages.tolist()) == pytest.approx(sorted(values))
        margins = [_check_pair(each, group, beta) for group in groups]
        pairs = [math.log1p(math.exp(-m)) for m in margins if m is not None]
        assert losses(events)[step - 1] == pytest.approx(
            sum(pairs) / len(pairs), rel=1e-4
        )
    assert any(margin for margin in margins)  # pairs are separated by now


def _pull(beta: float, gap: float) -> float:
    """β·σ(-β·gap)."""
    return beta / (1 + math.exp(beta * gap))


def _check_pair(each: Seen, group: dict[str, Any], beta: float) -> float | None:
    """The margin by which the policy tells a group's pair apart, None without one."""
    completions = group["completions"]
    rewards = [c["reward"] for c in completions]
    advantages = [c["advantage"] for c in completions]
    if max(rewards) == min(rewards):
        assert advantages == [0.0] * len(rewards)
        return None
    best = rewards.index(max(rewards))
    worst = len(rewards) - 1 - rewards[::-1].index(min(rewards))
    weight = advantages[best]
    assert weight > 0 > advantages[worst] == -weight
    assert sum(a != 0 for a in advantages) == 2
    ratio = {}
    for index, sign in ((best, weight), (worst, -weight)):
        rows = [
            r for r, a in enumerate(each.advantages.tolist()) if abs(a - sign) < 1e-7
        ]
        assert each.reference is not None
        totals = ((each.logprobs - each.reference) * each.mask).sum(dim=1).tolist()
        ratio[index] = [totals[row] for row in rows]
    # weights may be equal in several groups; then one of their pairs has this margin
    fits = [
        beta * (won - lost)
        for won in ratio[best]
        for lost in ratio[worst]
        if weight == pytest.approx(_pull(beta, won - lost), rel=1e-4)
    ]
    assert fits
    return fits[0]


def test_dpo_is_refused_without_a_reference_and_brings_one_by_itself(
    model_folder, rows_path, tmp_path
):
    credit = {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce"},
    }
    tree = config_tree(model_folder, rows_path, **credit, reference={"kind": "none"})

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "reference" in done.stderr
    events = run(tmp_path / "auto", model_folder, rows_path, **credit)
    assert all("kl/mean" in e["metrics"] for e in only(events, "step_finished"))
