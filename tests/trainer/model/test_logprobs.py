"""Chunked log-probs equal the plain computation, value and gradient."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.trainer.samples import cut, make_batch, update
from tests.trainer.tiny import config_tree
from trainer.config import ModelConfig, OptimConfig, RunConfig
from trainer.model import logprobs as module
from trainer.model.loading import prepare_device
from trainer.model.logprobs import LogitMap, token_logprobs
from trainer.model.optimizer import Optimizer


def plain(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    targets: torch.Tensor,
    temperature: float,
    logit_map: LogitMap,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden) * logit_map.scale
    if logit_map.cap is not None:
        logits = logit_map.cap * torch.tanh(logits / logit_map.cap)
    every = (logits / temperature).log_softmax(-1)
    chosen = every.gather(1, targets[:, None]).squeeze(1)
    return chosen, -(every.exp() * every).sum(-1)


@pytest.fixture(params=["kept", "computed again", "fused"])
def _in_chunks(request, monkeypatch) -> None:
    if request.param == "fused":  # as on a GPU, but for its compiler
        monkeypatch.setattr(module, "is_fused", lambda *_: True)
        monkeypatch.setattr(module, "compiled", lambda work: work)
    monkeypatch.setattr(module, "_MAX_LOGITS", 33)  # 3 tokens of 11
    monkeypatch.setattr(module, "_MAX_KEPT", 10**6 if request.param == "kept" else 0)


@pytest.mark.usefixtures("_in_chunks")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("uses_entropy", [False, True])
@pytest.mark.parametrize("cap", [None, 0.8])
def test_values_and_gradients_equal_the_plain_ones(
    *, with_bias, uses_entropy, cap
) -> None:
    logit_map = LogitMap(1.3, cap)
    torch.manual_seed(0)
    targets = torch.randint(0, 11, (7,))
    weights = torch.randn(7)
    found = []
    for compute in (plain, None):
        torch.manual_seed(1)
        head = torch.nn.Linear(5, 11, bias=with_bias)
        hidden = torch.randn(7, 5, requires_grad=True)
        if compute is None:
            logprob, entropy = token_logprobs(
                hidden, head, targets, temperature=0.7, logit_map=logit_map
            )
        else:
            logprob, entropy = compute(hidden, head, targets, 0.7, logit_map)
        loss = (logprob * weights).sum()
        if uses_entropy:
            loss = loss + (entropy * weights.flip(0)).sum()
        loss.backward()
        found.append([logprob, entropy, hidden.grad, head.weight.grad, head.bias])
        if with_bias:
            found[-1].append(head.bias.grad)

    for mine, expected in zip(found[1], found[0], strict=True):
        if expected is not None:
            assert torch.allclose(mine, expected, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [1_024, 16_384, 16_385, 32_768, 262_144])
def test_the_way_depends_on_the_vocabulary_not_on_the_tokens(vocabulary):
    """Else the memory of two small passes says nothing of a large one."""
    weight = torch.empty(vocabulary, 1, device="meta")
    ways = set()
    for tokens in (2_048, 4_096, 100_000):
        hidden = Mock(is_cuda=True, shape=(tokens, 1))
        ways.add(module.is_fused(hidden, weight))

    assert ways == {vocabulary > 16_384}


def test_without_a_compiler_logprobs_are_computed_plainly(monkeypatch):
    asked: list[int] = []

    def compile_(_work: object, **_: object) -> object:
        def refuse(number: int) -> int:
            asked.append(number)
            if number == 13:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            raise RuntimeError("InvalidCxxCompiler: no working C++ compiler found")

        return refuse

    monkeypatch.setattr(torch, "compile", compile_)
    double = module.compiled.__wrapped__(lambda number: 2 * number)

    with pytest.raises(torch.OutOfMemoryError):
        double(13)
    assert [double(number) for number in (7, 8)] == [14, 16]
    assert asked == [13, 7]


def test_an_impossible_token_leaves_the_entropy_finite():
    head = torch.nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [0.0], [-1e30]]))

    _, entropy = token_logprobs(
        torch.ones(1, 1), head, torch.tensor([0]), temperature=1.0
    )

    assert entropy.item() == pytest.approx(0.6931, abs=1e-4)


def test_no_tokens_give_no_logprobs():
    logprob, entropy = token_logprobs(
        torch.zeros(0, 4),
        torch.nn.Linear(4, 9),
        torch.zeros(0, dtype=torch.long),
        temperature=1.0,
    )

    assert logprob.shape == entropy.shape == (0,)


@pytest.mark.parametrize(
    ("device", "tf32", "expected"),
    [("cuda", True, "high"), ("cuda", False, "highest"), ("cpu", True, "highest")],
)
def test_float32_products_are_tf32_on_a_gpu_unless_turned_off(device, tf32, expected):
    before = torch.get_float32_matmul_precision()
    has_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        prepare_device(torch.device(device), tf32=tf32)
        found = torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cuda.enable_cudnn_sdp(has_cudnn)

    assert ModelConfig(path="-").tf32
    assert found == expected


def config_of(model: Path, rows: Path, **rollout: Any) -> RunConfig:
    tree = config_tree(
        model, rows, rollout=rollout, loss={"surrogate": "reinforce", "kl_coef": 0.0}
    )
    return RunConfig.model_validate(tree)


def test_it_is_the_sampling_temperature_unless_it_is_set(model_folder, rows_path):
    own = config_of(model_folder, rows_path, temperature=0.9)
    other = config_of(model_folder, rows_path, temperature=0.9, logprob_temperature=1.0)

    assert own.logprob_temperature == 0.9
    assert other.logprob_temperature == 1.0


@pytest.mark.parametrize("logprob_temperature", [None, 0.5, 2.0])
def test_the_loss_is_of_log_probs_at_that_temperature(
    policy, model_folder, rows_path, logprob_temperature
):
    config = config_of(
        model_folder,
        rows_path,
        temperature=1.5,
        logprob_temperature=logprob_temperature,
    )
    batch = make_batch(6)
    micro_batches = cut(batch, policy, max_tokens=10_000)
    expected = 0.0
    with torch.no_grad():
        for micro in micro_batches:
            logprobs, _ = policy.logprobs(micro, temperature=logprob_temperature or 1.5)
            weighed = logprobs * micro.mask * micro.advantages[:, None]
            expected -= weighed.sum().item() / batch.totals.num_tokens

    result = update(
        policy,
        Optimizer(policy, OptimConfig()),
        micro_batches,
        totals=batch.totals,
        config=config,
        learning_rate=0.0,
    )

    assert result.loss == pytest.approx(expected, rel=1e-5)
    # the engine's log-probs, of another temperature, are not held against these
    has_mismatch = any("mismatch" in name for name in result.statistics.metrics())
    assert has_mismatch == (logprob_temperature is None)
