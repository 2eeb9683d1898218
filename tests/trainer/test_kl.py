"""KL estimators, against worked examples and the exact divergence."""

from __future__ import annotations

import pytest
import torch

from trainer.kl import Estimator, kl_estimate


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", -0.2, 1.0),
        ("abs", 0.2, -1.0),
        ("k2", 0.02, -0.2),
        ("k3", 0.02140276, -0.22140276),
    ],
)
def test_values_and_gradients_at_a_worked_point(
    estimator: Estimator, value: float, gradient: float
) -> None:
    logprob = torch.tensor([-1.2], dtype=torch.float64, requires_grad=True)

    found = kl_estimate(logprob, torch.tensor([-1.0], dtype=torch.float64), estimator)
    found.sum().backward()

    assert found.item() == pytest.approx(value, abs=5e-9)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(gradient, abs=5e-9)


def test_the_sum_of_full_over_the_vocabulary_is_the_divergence() -> None:
    policy = torch.randn(3, 7, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(3, 7, dtype=torch.float64).log_softmax(-1)

    found = kl_estimate(policy, reference, "full").sum(-1)

    exact = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=policy),
        torch.distributions.Categorical(logits=reference),
    )
    assert torch.allclose(found, exact)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimates_are_unbiased_under_the_policy(estimator: Estimator) -> None:
    policy = torch.randn(6, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(6, dtype=torch.float64).log_softmax(-1)

    expected = (policy.exp() * kl_estimate(policy, reference, estimator)).sum()

    exact = kl_estimate(policy, reference, "full").sum()
    assert expected.item() == pytest.approx(exact.item())


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3", "full"])
def test_the_shape_is_kept_and_equal_models_have_no_distance(
    estimator: Estimator,
) -> None:
    logprobs = -torch.rand(2, 3, 4)

    found = kl_estimate(logprobs, logprobs, estimator)

    assert torch.equal(found, torch.zeros(2, 3, 4))


def test_a_clamp_bounds_each_value() -> None:
    found = kl_estimate(
        torch.tensor([-9.0, -1.0]), torch.tensor([-1.0, -1.1]), "k1", clamp=0.5
    )

    assert found.tolist() == pytest.approx([-0.5, 0.1])


def test_an_enormous_gap_stays_finite_with_its_gradient() -> None:
    logprob = torch.tensor([-500.0], requires_grad=True)

    found = kl_estimate(logprob, torch.tensor([0.0]), "k3", clamp=10.0)
    found.sum().backward()

    assert found.item() == 10.0
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match="k9"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k9")  # type: ignore[arg-type]
