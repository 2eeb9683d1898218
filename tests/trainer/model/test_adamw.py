"""AdamW's settings, against its formula written out."""

import pytest
import torch

from trainer.config import OptimConfig
from trainer.model.optimizer import Optimizer


@pytest.mark.parametrize(
    ("beta1", "beta2", "weight_decay"), [(0.9, 0.999, 0.0), (0.8, 0.95, 0.1)]
)
def test_two_updates_are_those_of_the_formula(policy, beta1, beta2, weight_decay):
    config = OptimConfig(
        beta1=beta1, beta2=beta2, weight_decay=weight_decay, max_grad_norm=None
    )
    optimizer = Optimizer(policy, config)
    weight = policy.model.get_input_embeddings().weight
    expected = weight.detach().double().clone()
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    torch.manual_seed(0)
    rate = 0.01

    for step in (1, 2):
        gradient = torch.randn_like(weight)
        weight.grad = gradient.clone()
        optimizer.step(optimizer.gradient_norm(), learning_rate=rate)

        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient.double().square()
        mean, square = first / (1 - beta1**step), second / (1 - beta2**step)
        expected = expected * (1 - rate * weight_decay)
        expected = expected - rate * mean / (square.sqrt() + 1e-8)

    torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-6)
