"""What is added to the surrogate: importance weights, entropy bonus, KL."""

import math

import pytest
import torch

from tests.trainer.losses import policy_loss
from trainer.config import LossConfig


def corrected(kind: str) -> tuple[float, dict[str, float]]:
    """Loss of tokens with importance weights 2, 4 and (second sequence) 0.5."""
    old = torch.zeros(2, 2).double()
    sampling = -torch.log(torch.tensor([[2.0, 4.0], [0.5, 9.0]])).double()
    loss, metrics = policy_loss(
        old,
        old,
        torch.tensor([1.0, 1.0]),
        torch.tensor([[1, 1], [1, 0]]),
        LossConfig(importance_correction=kind),
        sampling_logprobs=sampling,
    )
    return -loss.item() * 3, metrics


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("token_truncate", 2 + 3 + 0.5),
        ("token_mask", 2 + 0 + 0.5),
        ("sequence_truncate", 3 + 3 + 0.5),
        ("sequence_mask", 0 + 0 + 0.5),
    ],
)
def test_importance_correction(kind, weights):
    total, _ = corrected(kind)

    assert total == pytest.approx(weights)


def test_masked_tokens_are_counted():
    _, metrics = corrected("sequence_mask")

    assert metrics["importance/frac_masked"] == pytest.approx(2 / 3)


def test_a_token_without_a_sampling_logprob_is_not_corrected():
    loss, metrics = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.tensor([1.0]),
        torch.ones(1, 2),
        LossConfig(importance_correction="sequence_truncate"),
        sampling_logprobs=torch.tensor([[math.nan, -math.log(2.0)]]),
    )

    assert loss.item() == pytest.approx(-2.0)
    assert metrics["mismatch/mean"] == pytest.approx(math.log(2.0))


def test_the_mismatch_is_between_the_engine_and_the_trainer():
    logprobs = torch.tensor([[-9.0, -9.0, -9.0]])  # the policy has moved since
    old = torch.tensor([[-1.0, -2.0, -7.0]])
    sampling = torch.tensor([[-1.2, -1.5, -1.0]])

    _, metrics = policy_loss(
        logprobs,
        old,
        torch.ones(1),
        torch.tensor([[1, 1, 0]]),
        LossConfig(),
        sampling_logprobs=sampling,
    )

    assert metrics["mismatch/mean"] == pytest.approx((0.2 + 0.5) / 2)
    assert metrics["mismatch/max"] == pytest.approx(0.5)
    # exp(d) - d - 1 at d = 0.2 and -0.5
    assert metrics["mismatch/kl"] == pytest.approx(
        (math.exp(0.2) - 1.2 + math.exp(-0.5) - 0.5) / 2, abs=1e-6
    )


def test_the_mismatch_kl_is_the_divergence_from_what_was_sampled():
    generator = torch.Generator().manual_seed(3)
    engine, own = torch.randn(2, 5, generator=generator).double().log_softmax(-1)
    counts = (engine.exp() * 1000).round().long()  # tokens as the engine draws them
    drawn = torch.repeat_interleave(torch.arange(5), counts)

    _, metrics = policy_loss(
        own[drawn][None],
        own[drawn][None],
        torch.ones(1),
        torch.ones(1, len(drawn)),
        LossConfig(),
        sampling_logprobs=engine[drawn][None],
    )

    exact = (engine.exp() * (engine - own)).sum().item()
    assert exact > 0.1
    assert metrics["mismatch/kl"] == pytest.approx(exact, rel=0.01)


def test_with_old_logprobs_of_the_engine_the_mismatch_is_that_of_now():
    sampling = torch.tensor([[-1.0, -2.0]])

    _, metrics = policy_loss(
        torch.tensor([[-1.3, -2.0]]),
        sampling,
        torch.ones(1),
        torch.ones(1, 2),
        LossConfig(old_logprobs="sampling"),
        sampling_logprobs=sampling,
    )

    assert metrics["mismatch/max"] == pytest.approx(0.3)
    assert metrics["ratio/mean"] == pytest.approx((math.exp(-0.3) + 1) / 2)


def test_without_sampling_logprobs_the_mismatch_is_none():
    nothing = torch.full((1, 2), math.nan)

    for sampling in (None, nothing):
        _, metrics = policy_loss(
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.ones(1),
            torch.ones(1, 2),
            LossConfig(),
            sampling_logprobs=sampling,
        )
        assert not [name for name in metrics if name.startswith("mismatch/")]


def test_an_adapted_kl_weight_overrides_the_configured_one():
    def loss(config: LossConfig, kl_coef: float | None) -> float:
        found, _ = policy_loss(
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.zeros(1),
            torch.ones(1, 2),
            config,
            torch.ones(1, 2),
            kl_coef=kl_coef,
        )
        return found.item()

    configured = loss(LossConfig(kl_coef=0.5, kl_estimator="k2"), None)

    assert configured == pytest.approx(0.5 * 0.5)
    assert loss(LossConfig(kl_coef=0.5, kl_estimator="k2"), 0.2) == pytest.approx(0.1)
    assert loss(LossConfig(kl_coef=0.5, kl_estimator="k2"), 0.0) == 0.0


@pytest.mark.parametrize("estimator", ["k1+", "abs+", "k3+"])
def test_a_plus_moves_the_policy_as_k2_does(estimator):
    gradients = []
    for name in (estimator, "k2"):
        logprobs = torch.tensor([[-1.2, -0.4]], requires_grad=True)
        loss, _ = policy_loss(
            logprobs,
            logprobs.detach(),
            torch.zeros(1),
            torch.ones(1, 2),
            LossConfig(kl_coef=0.3, kl_estimator=name),
            torch.tensor([[-1.0, -0.9]]),
        )
        loss.backward()
        gradients.append(logprobs.grad)

    assert torch.equal(gradients[0], gradients[1])


def test_a_kl_times_the_ratio_counts_what_the_policy_samples_now():
    old, ratio = torch.tensor([[-1.5, -0.5]]), torch.tensor([[1.5, 0.5]])
    logprobs, reference = old + ratio.log(), torch.tensor([[-1.0, -0.9]])

    loss, metrics = policy_loss(
        logprobs,
        old,
        torch.zeros(1),
        torch.ones(1, 2),
        LossConfig(kl_coef=0.3, kl_estimator="k1", kl_ratio=True),
        reference,
    )

    gap = (logprobs - reference)[0]
    assert loss.item() == pytest.approx(0.3 * (ratio[0] * gap).mean().item())
    assert metrics["kl/mean"] == pytest.approx(gap.mean().item())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_a_kl_times_the_ratio_has_the_gradient_of_the_divergence(estimator):
    generator = torch.Generator().manual_seed(2)
    start, other = torch.randn(2, 6, generator=generator).double()
    reference = other.log_softmax(-1)
    logits, exact = (start.clone().requires_grad_() for _ in range(2))

    logprobs = logits.log_softmax(-1)
    config = LossConfig(kl_coef=1.0, kl_estimator=estimator, kl_ratio=True)
    for token, chance in enumerate(logprobs.detach().exp().tolist()):
        own = logprobs[token].view(1, 1)
        loss, _ = policy_loss(
            own,
            own.detach(),
            torch.zeros(1),
            torch.ones(1, 1),
            config,
            reference[token].view(1, 1),
        )
        (chance * loss).backward(retain_graph=True)
    policy = exact.log_softmax(-1)
    (policy.exp() * (policy - reference)).sum().backward()

    assert logits.grad is not None
    assert torch.allclose(logits.grad, exact.grad)


def test_a_kl_times_the_ratio_is_exact_for_what_older_weights_sampled():
    """The sampler, the batch's beginning and the policy are three distributions."""
    generator = torch.Generator().manual_seed(2)
    start, *others = torch.randn(4, 6, generator=generator).double()
    sampling, old, reference = (other.log_softmax(-1) for other in others)
    logits, exact = (start.clone().requires_grad_() for _ in range(2))
    config = LossConfig(
        kl_coef=1.0,
        kl_ratio=True,
        importance_correction="token_truncate",
        importance_cap=1e4,
    )

    logprobs = logits.log_softmax(-1)
    for token, chance in enumerate(sampling.exp().tolist()):
        loss, _ = policy_loss(
            logprobs[token].view(1, 1),
            old[token].view(1, 1),
            torch.zeros(1),
            torch.ones(1, 1),
            config,
            reference[token].view(1, 1),
            sampling_logprobs=sampling[token].view(1, 1),
        )
        (chance * loss).backward(retain_graph=True)
    policy = exact.log_softmax(-1)
    (policy.exp() * (policy - reference)).sum().backward()

    assert logits.grad is not None
    assert torch.allclose(logits.grad, exact.grad)


def test_a_clamped_kl_times_the_ratio_has_no_gradient():
    logprobs = torch.tensor([[-4.0, -1.2]], requires_grad=True)
    reference = torch.tensor([[-1.0, -1.0]])  # k3 of the first is 16.1

    loss, _ = policy_loss(
        logprobs,
        logprobs.detach(),
        torch.zeros(1),
        torch.ones(1, 2),
        LossConfig(kl_coef=1.0, kl_ratio=True, kl_clamp=10.0),
        reference,
    )
    loss.backward()

    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -0.1])


def test_the_entropy_bonus_lowers_the_loss():
    loss, _ = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.tensor([0.0]),
        torch.ones(1, 2),
        LossConfig(entropy_coef=0.5),
        entropy=torch.tensor([[1.0, 3.0]]),
    )

    assert loss.item() == pytest.approx(-1.0)


def test_kl_in_the_reward_is_left_out_of_the_loss():
    loss, metrics = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.tensor([0.0]),
        torch.ones(1, 2),
        LossConfig(kl_coef=0.5, kl_in="reward"),
        torch.ones(1, 2),
    )

    assert loss.item() == 0.0
    assert metrics["kl/mean"] > 0
