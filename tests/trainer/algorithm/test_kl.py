"""KL estimators, and what steers their weight."""

import math

import pytest
import torch

from trainer.algorithm.kl import AdaptiveKL, Estimator, kl_estimate


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", -0.2, 1.0),
        ("abs", 0.2, -1.0),
        ("k2", 0.02, -0.2),
        ("k3", 0.02140276, -0.22140276),
        ("k1+", -0.2, -0.2),
        ("abs+", 0.2, -0.2),
        ("k3+", 0.02140276, -0.2),
    ],
)
def test_values_and_gradients_at_a_worked_point(estimator, value, gradient):
    logprob = torch.tensor([-1.2], dtype=torch.float64, requires_grad=True)

    found = kl_estimate(logprob, torch.tensor([-1.0], dtype=torch.float64), estimator)
    found.sum().backward()

    assert found.item() == pytest.approx(value, abs=5e-9)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(gradient, abs=5e-9)


def test_the_sum_of_full_over_the_vocabulary_is_the_divergence():
    policy = torch.randn(3, 7, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(3, 7, dtype=torch.float64).log_softmax(-1)

    found = kl_estimate(policy, reference, "full").sum(-1)

    exact = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=policy),
        torch.distributions.Categorical(logits=reference),
    )
    assert torch.allclose(found, exact)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimates_are_unbiased_under_the_policy(estimator):
    policy = torch.randn(6, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(6, dtype=torch.float64).log_softmax(-1)

    expected = (policy.exp() * kl_estimate(policy, reference, estimator)).sum()

    exact = kl_estimate(policy, reference, "full").sum()
    assert expected.item() == pytest.approx(exact.item())


def expected_gradient(estimator: Estimator) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the logits: the estimate's, averaged over the policy, and the exact one."""
    generator = torch.Generator().manual_seed(1)
    start, other = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    reference = other.log_softmax(-1)
    found = []
    for kind in (estimator, "full"):
        logits = start.clone().requires_grad_()
        policy = logits.log_softmax(-1)
        # tokens are drawn, not differentiated; the exact sum holds its own weights
        weight = 1.0 if kind == "full" else policy.exp().detach()
        (weight * kl_estimate(policy, reference, kind)).sum().backward()
        assert logits.grad is not None
        found.append(logits.grad)
    return found[0], found[1]


@pytest.mark.parametrize("estimator", ["k2", "k1+", "abs+", "k3+"])
def test_a_plus_follows_the_gradient_of_the_divergence(estimator):
    average, exact = expected_gradient(estimator)

    assert exact.abs().max() > 0.05
    assert torch.allclose(average, exact)


def test_the_gradient_of_k1_leads_nowhere():
    average, _ = expected_gradient("k1")

    assert torch.allclose(average, torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3", "full", "k1+", "k3+"])
def test_the_shape_is_kept_and_equal_models_have_no_distance(estimator):
    logprobs = -torch.rand(2, 3, 4)

    found = kl_estimate(logprobs, logprobs, estimator)

    assert torch.equal(found, torch.zeros(2, 3, 4))


def test_a_clamp_bounds_each_value():
    found = kl_estimate(
        torch.tensor([-9.0, -1.0]), torch.tensor([-1.0, -1.1]), "k1", clamp=0.5
    )

    assert found.tolist() == pytest.approx([-0.5, 0.1])


def test_an_enormous_gap_stays_finite_with_its_gradient():
    logprob = torch.tensor([-500.0], requires_grad=True)

    found = kl_estimate(logprob, torch.tensor([0.0]), "k3", clamp=10.0)
    found.sum().backward()

    assert found.item() == 10.0
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k1+", "abs+", "k3+"])
def test_a_clamp_bounds_the_value_of_a_plus_and_leaves_its_gradient(estimator):
    logprob = torch.tensor([-1.0], requires_grad=True)

    found = kl_estimate(logprob, torch.tensor([-5.0]), estimator, clamp=0.5)
    found.sum().backward()

    assert found.item() == 0.5
    assert logprob.grad is not None
    assert logprob.grad.item() == 4.0


def test_a_clamp_takes_the_gradient_of_what_it_bounds():
    logprobs = torch.tensor([-9.0, -1.0], requires_grad=True)

    found = kl_estimate(logprobs, torch.tensor([-1.0, -1.1]), "k3", clamp=0.5)
    found.sum().backward()

    assert logprobs.grad is not None
    assert logprobs.grad[0] == 0
    assert logprobs.grad[1] > 0


@pytest.mark.parametrize(
    ("gap", "value"),
    [
        (-20.0, math.exp(20) - 21),
        (-80.0, math.exp(20) - 21),
        (20.0, 19 + math.exp(-20)),
        (80.0, 19 + math.exp(-20)),
    ],
)
def test_k3_takes_no_more_than_twenty_nats(gap, value):
    found = kl_estimate(torch.tensor([gap]).double(), torch.zeros(1).double(), "k3")

    assert found.item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("kl", "num_completions", "coef"),
    [
        (6.6, 100, 0.2 * 1.001),  # error 0.1, a hundredth of the horizon
        (5.4, 100, 0.2 * 0.999),
        (6.0, 100, 0.2),
        (60.0, 1_000, 0.2 * 1.02),  # the error counts as 0.2 at most
        (0.0, 1_000, 0.2 * 0.98),
        (-3.0, 1_000, 0.2 * 0.98),  # an estimate by k1 may be below 0
    ],
)
def test_an_update_scales_the_coefficient(kl, num_completions, coef):
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10_000)

    controller.update(kl, num_completions)

    assert controller.coef == pytest.approx(coef)


def test_it_brings_the_kl_to_its_target():
    controller = AdaptiveKL(coef=0.001, target=6.0, horizon=500)

    for _ in range(500):
        kl = 0.6 / controller.coef  # a stronger weight holds the policy closer
        controller.update(kl, 64)

    assert kl == pytest.approx(6.0, rel=0.01)
    assert controller.coef == pytest.approx(0.1, rel=0.01)


def test_the_weight_stays_positive_whatever_the_batch():
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10)

    controller.update(0.0, 100_000)

    assert controller.coef == pytest.approx(0.2 * 0.8)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_of_nan_leaves_the_coefficient(kl):
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10_000)

    controller.update(kl, 10)

    assert controller.coef == pytest.approx(0.2, rel=1e-3)
