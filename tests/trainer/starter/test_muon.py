import pytest
import torch

from tests.bench.starter.countdown import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(8, 8), (16, 4), (4, 16)])
def test_orthogonalising_brings_singular_values_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    values = torch.linalg.svdvals(orthogonalise(matrix))

    assert orthogonalise(matrix).shape == matrix.shape
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_orthogonalising_keeps_the_directions():
    matrix = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(matrix)

    middle = left.T @ orthogonalise(matrix) @ right.T

    assert torch.allclose(middle, middle.diagonal().diag(), atol=1e-3)


def test_a_step_goes_downhill():
    matrix = torch.nn.Parameter(torch.eye(4) * 3)
    optimizer = Muon([matrix], lr=0.1)

    for _ in range(20):
        optimizer.zero_grad()
        loss = matrix.square().sum()
        loss.backward()
        optimizer.step()

    assert loss < 15  # it began at 36
