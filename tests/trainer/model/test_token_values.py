"""Token values of an update: what they are, and that taking them changes nothing."""

import math
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.losses import AGGREGATIONS
from tests.trainer.samples import make_batch
from tests.trainer.scored import run_config
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import OptimConfig, RunConfig
from trainer.grpo import add_gradients
from trainer.model.microbatches import Minibatch
from trainer.model.optimizer import Optimizer
from trainer.model.packing import Batch, MicroBatch, TrainingSample
from trainer.model.policy import Policy
from trainer.model.token_values import (
    TokenValues,
    coefficients,
    gaps_of_all,
    rows_of,
    token_values,
)
from trainer.parallel.world import ALONE
from trainer.run.outcome import LossTerms, Pass

ALL = range(9)


def config_of(**loss: Any) -> RunConfig:
    return run_config(loss={"constant_length": 7} | loss)


def ready_batch(policy: Policy, *, max_tokens: int, loss: RunConfig) -> Minibatch:
    """Nine completions with advantages, an old policy and a reference of their own."""
    batch = Batch(make_batch(9).samples, loss=loss.loss)
    minibatch = Minibatch(batch, max_tokens=max_tokens, device=policy.device)
    minibatch.set_advantages(np.linspace(-1, 1, 9)[None])
    for micro in minibatch.micro_batches:
        rows = torch.tensor(micro.members)[:, None]
        wave = torch.sin(3.0 * rows + 1.7 * torch.arange(micro.mask.shape[1]))
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, temperature=1.0)
        micro.old_logprobs = logprobs - 0.4 * wave
        micro.reference_logprobs = logprobs + 0.3 * (1 - wave.square())
    return minibatch


def update_of(
    policy: Policy, config: RunConfig, *, max_tokens: int = 200, kept: Any = ALL
) -> tuple[Minibatch, Pass]:
    minibatch = ready_batch(policy, max_tokens=max_tokens, loss=config)
    found = add_gradients(
        policy,
        Optimizer(policy, OptimConfig()),
        minibatch.micro_batches,
        LossTerms(config, minibatch.batch.totals),
        kept=frozenset(kept),
    )
    return minibatch, found


def values_of(found: Pass) -> dict[int, TokenValues]:
    assert found.tokens is not None
    return dict(found.tokens)


def own(minibatch: Minibatch, name: str, member: int) -> torch.Tensor:
    """A micro-batch's values of one completion, without padding."""
    for micro in minibatch.micro_batches:
        if member in micro.members:
            row = micro.members.index(member)
            values: torch.Tensor = getattr(micro, name)
            return values[row][micro.completion_mask[row] > 0]
    raise AssertionError(member)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_coefficient_of_grpo_is_that_of_its_paper(aggregation, policy):
    """A·r where nothing is clipped, and β·(π_ref/π - 1): arXiv:2402.03300, eq. 21."""
    config = config_of(aggregation=aggregation, kl_coef=0.3)

    minibatch, found = update_of(policy, config)

    reported = values_of(found)
    for member, advantage in enumerate(torch.linspace(-1, 1, 9).tolist()):
        values = reported[member]
        old = own(minibatch, "old_logprobs", member)
        reference = own(minibatch, "reference_logprobs", member)
        ratio = torch.exp(values.logprob - old)
        up, down = ratio > 1.2, ratio < 0.8
        clipped = up if advantage > 0 else down if advantage < 0 else up & down
        pull = 0.3 * (torch.exp(reference - values.logprob) - 1)
        expected = torch.where(clipped, 0.0, advantage * ratio) + pull
        assert torch.allclose(values.coefficient, expected, atol=1e-5)
        assert values.ratio is not None
        assert torch.allclose(values.ratio, ratio)
        assert values.clipped is not None
        sign = 1 if advantage > 0 else -1
        assert torch.equal(values.clipped, sign * clipped.float())
    signs = [reported[member].clipped for member in ALL]
    every = torch.cat([each for each in signs if each is not None])
    assert {-1.0, 0.0, 1.0} == set(every.tolist())


def test_with_a_fresh_ratio_and_no_kl_the_coefficient_is_the_advantage(policy):
    minibatch = ready_batch(policy, max_tokens=200, loss=config_of())
    for micro in minibatch.micro_batches:
        micro.old_logprobs = None

    found = add_gradients(
        policy,
        Optimizer(policy, OptimConfig()),
        minibatch.micro_batches,
        LossTerms(config_of(), minibatch.batch.totals),
        kept=frozenset(ALL),
    )

    for values in values_of(found).values():
        assert torch.allclose(values.coefficient, values.advantage, atol=1e-6)


def test_cispo_weighs_each_token_by_its_bounded_ratio(policy):
    _, found = update_of(policy, config_of(surrogate="cispo"))

    for values in values_of(found).values():
        assert values.ratio is not None
        bounded = values.ratio.clamp(0.8, 1.2)
        assert torch.allclose(values.coefficient, bounded * values.advantage, atol=1e-5)


DIVISORS = {
    "token_mean": lambda totals, length: totals.num_tokens,
    "sequence_mean_token_mean": lambda totals, length: totals.num_sequences * length,
    "sequence_mean_token_sum": lambda totals, length: totals.num_sequences,
    "constant": lambda totals, length: totals.num_sequences * 7,
}
NUMERIC: dict[str, dict[str, Any]] = {
    "clip-k3": {"kl_coef": 0.3},
    "dual-k2": {"dual_clip": 1.3, "kl_coef": 0.3, "kl_estimator": "k2"},
    "gspo-k1": {"surrogate": "gspo", "kl_coef": 0.3, "kl_estimator": "k1"},
    "reinforce-abs": {
        "surrogate": "reinforce",
        "kl_coef": 0.3,
        "kl_estimator": "abs",
    },
    "corrected": {
        "importance_correction": "sequence_truncate",
        "importance_cap": 1.5,
        "kl_coef": 0.3,
        "kl_clamp": 0.02,
    },
    "kl-times-ratio": {"kl_coef": 0.3, "kl_ratio": True, "entropy_coef": 0.1},
    "kl-aggregated-apart": {
        "kl_coef": 0.3,
        "kl_aggregation": "sequence_mean_token_mean",
    },
    "end-masked": {"mask_end_token": True, "kl_coef": 0.3},
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", NUMERIC)
def test_the_coefficient_is_the_slope_of_the_loss(name, aggregation, policy):
    """In float64, against the loss with one log-prob at a time moved a little."""
    config = config_of(aggregation=aggregation, **NUMERIC[name])
    minibatch = ready_batch(policy, max_tokens=500, loss=config)
    (micro,) = minibatch.micro_batches
    totals = minibatch.batch.totals
    for field in ("advantages", "sampling_logprobs", "mask"):
        setattr(micro, field, getattr(micro, field).double())
    assert micro.reference_logprobs is not None
    start = micro.reference_logprobs.double() + 0.1
    entropy = torch.ones_like(start)

    def loss_at(logprobs: torch.Tensor) -> Any:
        return objective(
            logprobs,
            micro.old_logprobs,  # type: ignore[arg-type]  # set by ready_batch
            micro.advantages,
            micro.mask,
            config.loss_of_run,
            micro.reference_logprobs,
            sampling_logprobs=micro.sampling_logprobs,
            entropy=entropy,
            totals=totals,
        )

    logprobs = start.clone().requires_grad_()
    loss, statistics = loss_at(logprobs)
    loss.backward()

    found = token_values(
        micro,
        range(9),
        logprobs=logprobs,
        entropy=entropy,
        statistics=statistics,
        config=config,
        totals=totals,
    )

    for row, member in enumerate(micro.members):
        length = micro.mask[row].sum().item()
        divisor = DIVISORS[aggregation](totals, length)
        for index in range(len(found[member].coefficient)):
            slope = _slope(lambda at: loss_at(at)[0].item(), start, row, index)
            reported = found[member].coefficient[index].item()
            assert reported == pytest.approx(-slope * divisor, rel=1e-4, abs=1e-6)


def _slope(loss: Any, start: torch.Tensor, row: int, index: int) -> float:
    up, down = start.clone(), start.clone()
    up[row, index] += 1e-6
    down[row, index] -= 1e-6
    slope: float = (loss(up) - loss(down)) / 2e-6
    return slope


def test_values_do_not_depend_on_how_the_batch_is_cut(policy):
    config = config_of(kl_coef=0.3, entropy_coef=0.01, mask_end_token=True)

    _, whole = update_of(policy, config)
    _, cut = update_of(policy, config, max_tokens=20)

    assert values_of(whole).keys() == values_of(cut).keys() == set(ALL)
    for member, values in values_of(whole).items():
        for name, tokens in vars(values).items():
            other = getattr(values_of(cut)[member], name)
            if tokens is None:
                assert other is None
                continue
            assert torch.allclose(tokens, other, atol=1e-5, equal_nan=True), name


def test_processes_share_the_gap_between_sampler_and_trainer(policy):
    minibatch, _ = update_of(policy, config_of(), max_tokens=20)
    whole, shares = gaps_of_all([minibatch], ALONE), []
    parts = [copy(minibatch), copy(minibatch)]
    for rank, part in enumerate(parts):
        part.micro_batches = minibatch.micro_batches[rank::2]
        # a filler counts in the process that has it as its own
        filler = replace(minibatch.micro_batches[1 - rank], is_filler=True)
        part.micro_batches.append(filler)
        gaps_of_all(
            [part], SimpleNamespace(gather=lambda own: shares.append(own) or [own])
        )

    joined = gaps_of_all([], SimpleNamespace(gather=lambda own: [*shares, own]))

    assert len(minibatch.micro_batches) > 2
    assert joined.sums == pytest.approx(whole.sums)
    assert joined.positions == pytest.approx(whole.positions)
    assert joined.gaps.tolist() == whole.gaps.tolist()
    assert joined.differences.tolist() == whole.differences.tolist()
    for member in ALL:
        gap = own(minibatch, "old_logprobs", member) - own(
            minibatch, "sampling_logprobs", member
        )
        assert joined.sums[member, 1] == pytest.approx(gap.sum().item(), rel=1e-5)


def test_only_the_completions_that_are_requested_are_kept(policy):
    minibatch, found = update_of(policy, config_of(), max_tokens=30, kept={2, 5})

    assert set(values_of(found)) == {2, 5}
    for member in (2, 5):
        length = len(minibatch.batch.samples[member].completion_ids)
        for tokens in vars(values_of(found)[member]).values():
            assert tokens is None or tokens.shape == (length,)


def test_taking_values_changes_no_bit_of_the_gradient(policy):
    config = config_of(kl_coef=0.3, entropy_coef=0.01)

    def gradients(kept: Any) -> tuple[float, list[torch.Tensor]]:
        _, found = update_of(policy, config, max_tokens=40, kept=kept)
        assert (found.tokens is None) == (not kept)
        grads = [
            p.grad.clone() for p in policy.model.parameters() if p.grad is not None
        ]
        assert grads
        return found.loss, grads

    (loss, without), (same, with_values) = gradients(()), gradients({0, 4})

    assert loss == same
    for one, other in zip(without, with_values, strict=True):
        assert torch.equal(one, other)


def test_without_a_kept_completion_no_gradient_is_held(policy, monkeypatch):
    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("no one asked for it")

    monkeypatch.setattr("trainer.grpo.token_values", refuse)
    monkeypatch.setattr(torch.Tensor, "retain_grad", refuse, raising=False)

    _, found = update_of(policy, config_of(), kept=())

    assert found.tokens is None


def test_a_token_outside_of_the_loss_has_no_ratio_and_pulls_nothing(policy):
    config = config_of(mask_end_token=True, kl_coef=0.3)

    _, found = update_of(policy, config)

    for values in values_of(found).values():
        assert values.coefficient[-1] == 0
        assert math.isfinite(values.logprob[-1])
        for tokens in (values.ratio, values.kl, values.clipped):
            assert tokens is not None
            assert math.isnan(tokens[-1])
            assert tokens[:-1].isfinite().all()


def test_token_values_a_run_lacks_are_none(policy):
    minibatch = ready_batch(
        policy, max_tokens=500, loss=config_of(surrogate="reinforce")
    )
    for micro in minibatch.micro_batches:
        micro.old_logprobs = micro.reference_logprobs = None
    config = run_config(
        rollout={"source": "dataset", "group_size": 1, "one_step_off": False},
        advantage={"credit": "ones"},
        loss={"surrogate": "reinforce"},
    )

    found = add_gradients(
        policy,
        Optimizer(policy, OptimConfig()),
        minibatch.micro_batches,
        LossTerms(config, minibatch.batch.totals),
        kept=frozenset(ALL),
    )

    values = values_of(found)[0]
    assert values.sampling_logprob is None  # no one sampled the dataset's texts
    assert values.kl is None  # there is no reference
    assert values.ratio is None  # REINFORCE compares with no older policy
    assert values.clipped is None  # and has no bounds
    assert torch.allclose(values.coefficient, values.advantage, atol=1e-6)


def test_the_prompts_tokens_are_left_out_where_the_loss_covers_them(policy):
    minibatch, found = update_of(policy, config_of(include_prompt=True))

    for member, values in values_of(found).items():
        sample: TrainingSample = minibatch.batch.samples[member]
        assert len(values.logprob) == len(sample.completion_ids)
        assert values.sampling_logprob is not None
        assert torch.allclose(
            values.sampling_logprob, torch.tensor(sample.sampling_logprobs)
        )


def test_a_filler_gives_no_values(policy):
    minibatch = ready_batch(policy, max_tokens=500, loss=config_of())
    micro: MicroBatch = minibatch.micro_batches[0]

    idle = minibatch.idle_micro_batches()

    assert rows_of(micro, {3}) == [micro.members.index(3)]
    assert [rows_of(each, set(ALL)) for each in idle] == [[]]


def test_totals_of_nothing_divide_by_nothing():
    """A batch that is masked as a whole."""
    totals = BatchTotals(num_tokens=0, num_sequences=2)
    mask = torch.zeros(2, 3)

    found = coefficients(
        torch.zeros(2, 3), mask, config_of().loss_of_run, totals=totals
    )

    assert torch.equal(found, torch.zeros(2, 3))
