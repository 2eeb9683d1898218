"""Files of tensors are written and read one by one, in safetensors' own form."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.output.test_checkpoint import saved
from trainer.config import ModelConfig, OptimConfig, ReferenceConfig
from trainer.model import reference as frozen
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import FrozenReference
from trainer.output import checkpoint
from trainer.tensorfile import TensorWriter, read_shapes, read_tensors

TENSORS = {
    "1.weight": torch.arange(6.0).view(2, 3),
    "10.weight": torch.ones(3, 2).t(),
    "counts": torch.tensor([3, 1, 2]),
    "halves": torch.tensor([0.5, -2.0, 7.0], dtype=torch.bfloat16),
    "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "none": torch.zeros(0, 4),
    "schön": torch.tensor(2.5, dtype=torch.float64),
}
SHAPES = [(name, each.dtype, each.shape) for name, each in TENSORS.items()]


@pytest.fixture
def policy(model_folder) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder)))


def test_they_are_what_safetensors_writes(tmp_path):
    save_file(
        {name: tensor.contiguous() for name, tensor in TENSORS.items()},
        tmp_path / "expected",
    )

    with TensorWriter(tmp_path / "own", SHAPES) as file:
        for name, tensor in TENSORS.items():
            file.add(name, tensor)

    assert (tmp_path / "own").read_bytes() == (tmp_path / "expected").read_bytes()
    assert read_shapes(tmp_path / "own") == {n: t.shape for n, t in TENSORS.items()}
    read = dict(read_tensors(tmp_path / "own"))
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], each) for name, each in TENSORS.items())


def test_a_file_that_lacks_a_tensor_is_not_passed_off_as_whole(tmp_path):
    def write() -> None:
        with TensorWriter(tmp_path / "own", SHAPES) as file:
            for name, tensor in TENSORS.items():
                if name != "counts":
                    file.add(name, tensor)

    with pytest.raises(AssertionError, match="counts"):
        write()


class Alive:
    """How many of the tensors handed on are alive at the same time."""

    def __init__(self) -> None:
        self.most = self.num_seen = 0
        self._all: list[weakref.ref[torch.Tensor]] = []

    def counted(
        self, tensors: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            handed = tensor.clone()
            self._all.append(weakref.ref(handed))
            self.num_seen += 1
            self.most = max(self.most, sum(each() is not None for each in self._all))
            yield name, handed
            del handed


def test_a_checkpoint_is_written_without_a_second_optimizer_in_memory(
    policy, tmp_path, monkeypatch
):
    alive, whole = Alive(), Optimizer.tensors
    monkeypatch.setattr(Optimizer, "tensors", lambda own: alive.counted(whole(own)))

    path = saved(tmp_path, policy)

    assert alive.num_seen > 20
    assert alive.most <= 2
    assert len(load_file(path / "optimizer.safetensors")) == alive.num_seen + 1


def test_a_checkpoint_is_resumed_without_its_optimizer_in_memory_at_once(
    policy, tmp_path, monkeypatch
):
    path, alive = saved(tmp_path, policy), Alive()
    monkeypatch.setattr(
        checkpoint, "read_tensors", lambda path: alive.counted(read_tensors(path))
    )
    optimizer = Optimizer(policy, OptimConfig())

    checkpoint.restore_optimizer(path, optimizer)

    assert alive.num_seen > 20
    assert alive.most <= 2
    read = dict(read_tensors(path / "optimizer.safetensors"))
    assert all(torch.equal(read[name], each) for name, each in optimizer.tensors())


def test_a_reference_is_resumed_without_a_second_one_in_memory(
    policy, tmp_path, monkeypatch
):
    alive, reference = Alive(), FrozenReference(policy.copied(), ReferenceConfig())
    reference.save(tmp_path / "reference")
    monkeypatch.setattr(
        frozen, "read_tensors", lambda path: alive.counted(read_tensors(path))
    )

    reference.restore(tmp_path / "reference")

    assert alive.num_seen > 20
    assert alive.most <= 2
    found = dict(reference.policy.weights())
    assert all(torch.equal(found[name], each) for name, each in policy.weights())
