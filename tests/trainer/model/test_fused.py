"""The fused parts of a layer: their formulas, and their gradients by differences."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from trainer.model.kernels import rms_norm, rotate, signed, swiglu


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_()


COS, SIN = drawn(5, 1, 8).detach(), drawn(5, 1, 8).detach()
CASES: list[tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = [
    (lambda x, w: rms_norm(x, w, 1e-6), [drawn(5, 8), drawn(8)]),
    (lambda x, w: rms_norm(x, w, 1e-2), [drawn(5, 3, 8), drawn(8)]),
    (lambda x: rotate(x, COS, SIN), [drawn(5, 3, 8)]),
    (swiglu, [drawn(5, 8), drawn(8, 5).T.detach().contiguous().requires_grad_()]),
]


@pytest.mark.parametrize(("function", "inputs"), CASES)
def test_gradients_are_those_of_differences(function, inputs):
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_equals_that_of_transformers(dtype):
    norm = LlamaRMSNorm(16, eps=1e-5).to(dtype)
    inputs, weight = drawn(9, 16, dtype=dtype), drawn(16, dtype=dtype)
    norm.weight.data = weight.detach().clone()
    upstream = drawn(9, 16, dtype=dtype).detach() + 1

    expected = norm(inputs)
    expected.backward(upstream)
    wanted, inputs.grad = inputs.grad, None
    found = rms_norm(inputs, weight, 1e-5)
    found.backward(upstream)

    assert torch.equal(found, expected)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(inputs.grad, wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        weight.grad, norm.weight.grad, rtol=tolerance, atol=tolerance
    )


def test_a_rotation_equals_that_of_transformers():
    inputs = drawn(5, 3, 8).detach()
    expected, _ = apply_rotary_pos_emb(inputs, inputs, COS[:, 0], SIN[:, 0])

    torch.testing.assert_close(rotate(inputs, COS, signed(SIN)), expected)


def test_a_gate_is_silu_times_what_it_lets_through():
    gate, up = drawn(4, 6), drawn(4, 6)

    assert torch.equal(swiglu(gate, up), functional.silu(gate) * up)
