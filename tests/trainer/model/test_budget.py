"""What goes through a GPU at once follows its free memory."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from tests.trainer.rollout.test_rollout import requests_of, sample
from tests.trainer.tiny import config_tree, run_trainer, write_config
from trainer.config import ModelConfig, OptimConfig
from trainer.model.budget import GpuMemory, MemoryBudget
from trainer.model.optimizer import Optimizer
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy, load_policy
from trainer.rollout import builtin, decoder
from trainer.rollout.cache import bytes_per_token
from trainer.rollout.decoder import draw_tokens
from trainer.sizes.memory import PassMemory, PassSizes, choose_sizes, fitting_rows

Result = TypeVar("Result")
AUTO = {"micro_batch_tokens": "auto"}
PLAIN = PassMemory(free=60e9, fixed=5e9, each=1e6)  # (0.9 · 60 - 5) GB / 1 MB: 49,000
WIDE = PassMemory(free=60e9, fixed=5e9, each=4e6)  # 12,250
LEAN = PassMemory(free=60e9, fixed=5e9, each=5e5)  # 98,000


def chosen(
    plain: PassMemory = PLAIN, lean: PassMemory | None = None, /, **settings: Any
) -> PassSizes | None:
    given = {"longest": 1_536, "largest": 200_000} | settings
    return choose_sizes([plain], None if lean is None else [lean], **given)


def test_nine_tenths_of_what_is_free_are_taken_in_multiples_of_1024():
    assert chosen() == PassSizes(tokens=47 * 1_024, checkpointing=False)


def test_checkpointing_makes_room_where_16384_tokens_do_not_fit():
    assert chosen(WIDE) is None
    assert chosen(WIDE, LEAN) == PassSizes(tokens=95 * 1_024, checkpointing=True)


def test_checkpointing_makes_room_for_a_longer_sequence():
    found = chosen(PLAIN, LEAN, longest=50_000)

    assert found == PassSizes(tokens=95 * 1_024, checkpointing=True)


def test_a_small_update_need_not_fit_16384_tokens():
    assert chosen(WIDE, largest=8_000) == PassSizes(
        tokens=11 * 1_024, checkpointing=False
    )


def test_tokens_have_an_upper_bound():
    found = chosen(PassMemory(free=60e9, each=1e5))

    assert found == PassSizes(tokens=131_072, checkpointing=False)


def test_a_sequence_that_does_not_fit_is_tried_alone():
    too_much = PassMemory(free=60e9)

    found = chosen(too_much, too_much, longest=1_536)

    assert found == PassSizes(tokens=1_536, checkpointing=True)


def test_checkpointing_follows_the_tokens_that_are_configured():
    few, many = chosen(tokens=40_000), chosen(tokens=60_000)

    assert few == PassSizes(tokens=40_000, checkpointing=False)
    assert many == PassSizes(tokens=60_000, checkpointing=True)


def test_tokens_follow_the_checkpointing_that_is_configured():
    off, on = chosen(WIDE, checkpointing=False), chosen(WIDE, LEAN, checkpointing=True)

    assert off == PassSizes(tokens=11 * 1_024, checkpointing=False)
    assert on == PassSizes(tokens=95 * 1_024, checkpointing=True)


def test_the_process_with_the_least_memory_decides():
    less = PassMemory(free=40e9, fixed=5e9, each=1e6)

    found = choose_sizes([PLAIN, less], None, longest=1_536, largest=200_000)

    assert found == PassSizes(tokens=30 * 1_024, checkpointing=False)


def test_rows_take_four_fifths_of_what_is_free():
    assert fitting_rows(free=10e9, row_bytes=1e8) == 80
    assert fitting_rows(free=1.0, row_bytes=1e8) == 1


def test_moments_that_are_not_there_are_counted(policy):
    optimizer = Optimizer(policy, OptimConfig())
    trained = sum(p.numel() for p in policy.model.parameters())

    assert optimizer.missing_bytes == 8 * trained
    for parameter in policy.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(optimizer.gradient_norm(), learning_rate=0.0)
    assert optimizer.missing_bytes == 0


def test_checkpointing_is_switched_on_and_off(policy):
    for on in (True, False, False, True):
        policy.set_checkpointing(on=on)

        assert policy.model.is_activation_checkpointing is on
        modules = [*policy.model.modules()]
        assert any(module.training for module in modules) is on


def test_auto_loads_without_checkpointing(model_folder):
    policy = load_policy(ModelConfig(path=str(model_folder), device="cpu"))

    assert not policy.model.is_activation_checkpointing
    assert not policy.model.training


def test_a_budget_left_to_a_cpu_has_8192_tokens():
    budget = MemoryBudget("auto", on_halved=lambda *_: None)

    assert budget.tokens == 8_192
    assert budget.state_dict() == {"limit": None}


def test_memory_of_vllm_or_a_graph_is_not_free(monkeypatch):
    def segment(total: int, used: int, *, pool: int = 0, device: int = 0) -> Any:
        sizes = {"total_size": total, "allocated_size": used}
        return {**sizes, "device": device, "segment_pool_id": (0, pool)}

    blocks = [segment(9, 4), segment(9, 0, pool=1), segment(9, 0, device=1)]
    monkeypatch.setattr("torch.cuda.memory_snapshot", lambda: blocks)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (2**30 + 100, 2**31))

    memory = GpuMemory(torch.device("cuda:0"))

    assert memory.free_bytes() == 105
    assert memory.free_bytes(enough=101) == 105
    assert memory.free_bytes(enough=100) == 100  # without a look at each block


@dataclass
class FakeMemory:
    """A GPU whose passes take so many bytes a token."""

    free: float
    fixed: float = 1e9
    plain: float = 1e6
    lean: float = 1e5
    most: float = math.inf  # tokens that fit without checkpointing
    passes: list[tuple[int, bool]] = field(default_factory=list)
    num_measured: int = 0

    def free_bytes(self, *, enough: float = math.inf) -> int:
        return int(self.free)

    def peak_bytes(self, work: Callable[[], Result]) -> tuple[int, Result]:
        self.num_measured += 1
        before = len(self.passes)
        result = work()
        return int(max(self._bytes(*each) for each in self.passes[before:])), result

    def _bytes(self, tokens: int, recomputes: bool) -> float:
        return self.fixed + tokens * (self.lean if recomputes else self.plain)


@pytest.fixture
def gpu(monkeypatch) -> FakeMemory:
    memory, forward = FakeMemory(free=13e9), Policy.hidden

    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        if torch.is_grad_enabled():
            tokens = len(micro.layout(torch.float32).input_ids)
            recomputes = self.model.is_activation_checkpointing
            memory.passes.append((tokens, recomputes))
            if tokens > memory.most and not recomputes:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, micro)

    monkeypatch.setattr(Policy, "hidden", hidden)
    monkeypatch.setattr("trainer.run.state.memory_of", lambda _device: memory)
    return memory


def run(
    folder: Path, model: Path, rows: Path, *options: object, **parts: Any
) -> tuple[Path, dict[str, Any]]:
    """The last checkpoint's weights, and what it holds of memory."""
    parts = {"optim": AUTO, "loss": {"kl_coef": 0.1}} | parts
    tree = config_tree(model, rows, **parts)
    out = folder / "out"
    done = run_trainer("run", write_config(folder, tree), "--out", out, *options)
    assert done.returncode == 0, done.stderr
    last = max((out / "checkpoints").glob("step-*"))
    controllers = json.loads((last / "controllers.json").read_bytes())
    return last / "model" / "model.safetensors", controllers["memory"]


def test_a_run_takes_the_tokens_that_fit(gpu, model_folder, rows_path, tmp_path):
    weights, memory = run(tmp_path / "auto", model_folder, rows_path)
    # three passes of two micro-batches, then the batch as one part, once a step
    measured, rest = gpu.passes[:6], gpu.passes[6:]
    given = {"micro_batch_tokens": 10_240}
    expected, _ = run(tmp_path / "given", model_folder, rows_path, optim=given)

    assert memory["chosen"] == {"tokens": 10_240, "checkpointing": False}
    assert memory["chosen_in"] == 1
    assert measured[2][0] < 2_048 < measured[4][0] < 4_096
    assert len(rest) == 6
    assert weights.read_bytes() == expected.read_bytes()


def test_a_run_recomputes_where_too_little_fits_without(
    gpu, model_folder, rows_path, tmp_path
):
    gpu.free = 8e9

    _, memory = run(tmp_path, model_folder, rows_path)

    # (0.9 · 8 - 1) GB / 0.1 MB: 62,000; the measured passes have a token in 500 less
    assert memory["chosen"] == {"tokens": 60 * 1_024, "checkpointing": True}
    assert {recomputes for _, recomputes in gpu.passes[-6:]} == {True}


@pytest.mark.slow
def test_a_run_recomputes_where_the_measured_pass_is_too_large(
    gpu, model_folder, rows_path, tmp_path
):
    gpu.most = 2_000

    _, memory = run(tmp_path, model_folder, rows_path)

    assert memory["chosen"]["checkpointing"]


@pytest.mark.slow
def test_a_resumed_run_continues_with_what_was_chosen(
    gpu, model_folder, rows_path, tmp_path
):
    whole, memory = run(tmp_path / "whole", model_folder, rows_path)
    gpu.num_measured, gpu.free = 0, 8e9
    saved = tmp_path / "whole" / "out" / "checkpoints" / "step-000002-attempt-1"

    resumed, again = run(
        tmp_path / "resumed", model_folder, rows_path, "--resume-from", saved
    )

    assert gpu.num_measured == 0
    assert again == memory
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_later_phase_chooses_again(gpu, model_folder, rows_path, tmp_path):
    tree = config_tree(model_folder, rows_path, optim=AUTO)
    tree["phases"] = [  # type: ignore[assignment]
        {"name": "first", "num_steps": 2},
        {"name": "then", "num_steps": 4, "changes": {"rollout": {"group_size": 2}}},
    ]
    config = write_config(tmp_path, tree)

    assert run_trainer("run", config, "--out", tmp_path / "out").returncode == 0

    assert gpu.num_measured == 6


def test_nothing_is_measured_where_all_is_configured(
    gpu, model_folder, rows_path, tmp_path
):
    model = {"path": str(model_folder), "gradient_checkpointing": False}
    tree = config_tree(model_folder, rows_path, model=model)

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert (done.returncode, gpu.num_measured) == (0, 0)


@pytest.mark.slow
def test_sampling_during_an_update_leaves_room_for_its_cache(
    gpu, model_folder, rows_path, tmp_path
):
    ahead = {"one_step_off": True}
    corrected = {"importance_correction": "token_truncate"}
    gpu.free, gpu.plain = 20e6, 1e3
    gpu.fixed = 0

    few = {"optim": AUTO | {"num_steps": 2}}

    _, alone = run(tmp_path / "alone", model_folder, rows_path, **few)
    parts = {"rollout": ahead, "loss": corrected, **few}
    _, beside = run(tmp_path / "beside", model_folder, rows_path, **parts)

    assert beside["chosen"]["tokens"] < alone["chosen"]["tokens"]


@pytest.mark.parametrize(("rows", "expected"), [(3, 3), (100, 20)])
def test_no_more_rows_are_sampled_than_fit(rows, expected, policy, monkeypatch):
    requests, draw = requests_of(policy, 4), draw_tokens
    longest = max(len(each.token_ids) for each in requests)
    token = bytes_per_token(policy.model.config, torch.float32)
    row = 1.1 * token * (longest + 8) + 20 * policy.head.weight.shape[0]
    memory = FakeMemory(free=1.01 * rows * row / 0.8)
    monkeypatch.setattr(builtin, "memory_of", lambda _device: memory)
    sizes: list[int] = []

    def drawn(logits: torch.Tensor, *rest: Any, **options: Any) -> Any:
        sizes.append(len(logits))
        return draw(logits, *rest, **options)

    monkeypatch.setattr(decoder, "draw_tokens", drawn)

    found = sample(policy, requests, max_new_tokens=8)

    assert max(sizes) == expected
    assert sum(len(group) for group in found) == 20
