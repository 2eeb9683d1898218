"""Drawing by sums of blocks inverts the same distribution function at the same place.

Where there is a GPU this is compiled. Here the operations run one by one.
"""

import pytest
import torch

from trainer.model.logprobs import LogitMap
from trainer.rollout import decoder
from trainer.rollout.decoder import draw_by_blocks, draw_next, draw_tokens
from trainer.rollout.engine import SamplingParams

NEAR = 1e-5  # of the mass: rounding moves the ends of a token's interval by less


@pytest.mark.parametrize("size", [3, 1_024, 1_025, 5_000])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_a_token_drawn_by_blocks_holds_the_uniform_number(size, spread):
    products = spread * torch.randn(
        400, size, generator=torch.Generator().manual_seed(1)
    )
    uniform = torch.rand(400, generator=torch.Generator().manual_seed(2))

    chosen, logprobs = draw_by_blocks(products, uniform, LogitMap())

    exact = products.double().log_softmax(dim=1)
    ends = exact.exp().cumsum(dim=1)
    end = ends.gather(1, chosen[:, None]).squeeze(1)
    own = exact.gather(1, chosen[:, None]).squeeze(1)
    assert (uniform < end + NEAR).all()
    assert (uniform > end - own.exp() - NEAR).all()
    assert (logprobs - own).abs().max() < 1e-5
    usual, _ = draw_tokens(products, uniform, temperature=1.0)
    assert (chosen == usual).float().mean() > 0.99


def test_scaled_and_bounded_logits_are_drawn_by_blocks_at_their_temperature():
    products = 4 * torch.randn(300, 2_000, generator=torch.Generator().manual_seed(3))
    uniform = torch.rand(300, generator=torch.Generator().manual_seed(4))
    logit_map = LogitMap(scale=0.5, cap=3.0)

    chosen, logprobs = draw_by_blocks(products, uniform, logit_map.at(0.7))
    usual, expected = draw_tokens(logit_map(products), uniform, temperature=0.7)

    same = chosen == usual
    assert same.float().mean() > 0.99
    torch.testing.assert_close(logprobs[same], expected[same], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_the_ends_of_the_unit_interval_draw_tokens_that_can_occur_by_blocks(uniform):
    products = torch.randn(2_000, 2_050, generator=torch.Generator().manual_seed(5))
    products[:, :3] = products[:, 1_500:] = -torch.inf

    chosen, logprobs = draw_by_blocks(
        products, torch.full((2_000,), uniform), LogitMap()
    )

    assert logprobs.isfinite().all()
    assert ((chosen >= 3) & (chosen < 1_500)).all()


@pytest.mark.parametrize(
    ("options", "takes_blocks"),
    [
        ({}, True),
        ({"temperature": 0.6}, True),
        ({"temperature": 0.0}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"min_p": 0.1}, False),
    ],
)
def test_a_gpu_draws_from_all_tokens_by_blocks(
    options, takes_blocks, policy, monkeypatch
):
    taken = []

    def drawn(*inputs):
        taken.append(inputs)
        return draw_by_blocks(*inputs)

    monkeypatch.setattr(decoder, "is_fused", lambda *_: True)
    monkeypatch.setattr(decoder, "compiled", lambda _work: drawn)
    hidden = torch.randn(6, policy.head.in_features)
    uniform = torch.linspace(0.05, 0.95, 6)
    params = SamplingParams(max_new_tokens=4, **({"temperature": 1.0} | options))

    chosen, logprobs = draw_next(policy, hidden, uniform, params)
    monkeypatch.setattr(decoder, "is_fused", lambda *_: False)
    usual, expected = draw_next(policy, hidden, uniform, params)

    assert bool(taken) == takes_blocks
    assert torch.equal(chosen, usual)
    torch.testing.assert_close(logprobs, expected)
