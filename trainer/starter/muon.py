"""Muon: momentum whose update is orthogonalised (Keller Jordan, 2024).

torch's own Muon orthogonalises in bfloat16, which a CPU without AVX-512 or AMX computes
ten times more slowly; this one stays in float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

# Of the quintic iteration; they push singular values towards 1 fast, not exactly.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """For matrices only; each step moves by `lr` in every direction of the update."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], *, lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure here
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                momentum = state.setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = matrix.grad.lerp(momentum, _MOMENTUM)  # Nesterov
                rows, columns = matrix.shape
                scale = max(1.0, rows / columns) ** 0.5
                matrix.add_(orthogonalise(update), alpha=-group["lr"] * scale)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Roughly U Vᵀ of the singular value decomposition U S Vᵀ; shape kept.

    Newton-Schulz: X ← aX + (bA + cA²)X with A = XXᵀ, five times; singular values end
    between about 0.7 and 1.2.
    """
    x: torch.Tensor = matrix / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.T if is_tall else x
