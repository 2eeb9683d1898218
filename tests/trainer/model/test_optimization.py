"""The schedule, clipping, masters and updates that must not happen."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.samples import cut, make_batch, update
from tests.trainer.tiny import write_model
from trainer.config import ModelConfig, OptimConfig, RunConfig, learning_rate
from trainer.grpo import add_gradients, apply_gradients, loss_of
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy, load_policy
from trainer.run.outcome import LossTerms, UpdateResult


def rates(**options: Any) -> list[float]:
    config = OptimConfig(learning_rate=1.0, num_steps=10, **options)
    return [learning_rate(step, config) for step in range(1, 11)]


def test_the_rate_is_constant_by_default():
    assert rates() == [1.0] * 10


def test_warm_up_rises_to_the_peak_just_after_it():
    assert rates(warmup_steps=3)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_ends_at_its_final_share(schedule):
    found = rates(schedule=schedule, warmup_steps=1, final_lr_fraction=0.1)

    assert found[1] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert found[1:] == sorted(found[1:], reverse=True)


def test_halfway_linear_and_cosine_agree():
    config = {"learning_rate": 1.0, "num_steps": 11}

    for schedule in ("linear", "cosine"):
        rate = learning_rate(6, OptimConfig(schedule=schedule, **config))
        assert rate == pytest.approx(0.5)


def run_config(**optim: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "-"},
            "data": {"rows": "-"},
            "reward": {"recipe": {"rules": [{"name": "a", "kind": "length"}]}},
            "optim": optim,
        }
    )


def one_update(
    policy: Policy, config: RunConfig, optimizer: Optimizer, *, rate: float = 1e-2
) -> UpdateResult:
    batch = make_batch(6)
    return update(
        policy,
        optimizer,
        cut(batch, policy, max_tokens=60),
        totals=batch.totals,
        config=config,
        learning_rate=rate,
    )


def weights(policy: Policy) -> torch.Tensor:
    parameters = policy.model.parameters()
    return torch.cat([p.detach().float().flatten() for p in parameters])


def test_an_update_lowers_the_loss(policy):
    config = run_config()
    optimizer = Optimizer(policy, config.optim)
    batch = make_batch(6)
    micro_batches = cut(batch, policy, max_tokens=60)

    losses = [
        update(
            policy,
            optimizer,
            micro_batches,
            totals=batch.totals,
            config=config,
            learning_rate=1e-3,
        ).loss
        for _ in range(3)
    ]

    assert losses == sorted(losses, reverse=True)


def test_the_norm_before_clipping_is_reported(policy, model_folder):
    other = load_policy(ModelConfig(path=str(model_folder), device="cpu"))
    free, clipped = run_config(max_grad_norm=None), run_config(max_grad_norm=1e-3)

    first = one_update(policy, free, Optimizer(policy, free.optim))
    second = one_update(other, clipped, Optimizer(other, clipped.optim))

    assert first.grad_norm == second.grad_norm > 1e-3


def test_the_gradients_norm_is_cut_to_its_limit(policy):
    config = run_config(max_grad_norm=1e-3)
    applied: list[float] = []

    def note(adamw: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in adamw.param_groups for p in group["params"]]
        found = [each for each in gradients if each is not None]
        applied.append(torch.nn.utils.get_total_norm(found).item())

    hook = register_optimizer_step_pre_hook(note)
    try:
        result = one_update(policy, config, Optimizer(policy, config.optim))
    finally:
        hook.remove()

    assert result.grad_norm > 2e-3
    assert applied == pytest.approx([1e-3], rel=1e-2)


def test_a_gradient_that_is_infinite_leaves_the_weights(policy):
    config = run_config()
    optimizer = Optimizer(policy, config.optim)
    before = weights(policy)
    weight = next(policy.model.parameters())

    hook = weight.register_hook(lambda gradient: gradient * torch.inf)
    result = one_update(policy, config, optimizer)
    hook.remove()

    assert result.is_skipped
    assert math.isfinite(result.loss)
    assert torch.equal(weights(policy), before)
    assert not one_update(policy, config, optimizer).is_skipped


def test_a_loss_of_nan_leaves_the_weights(policy):
    config = run_config()
    optimizer = Optimizer(policy, config.optim)
    before = weights(policy)
    batch = make_batch(6)
    micro_batches = cut(batch, policy, max_tokens=60)
    micro_batches[0].advantages[:] = torch.nan

    result = update(
        policy,
        optimizer,
        micro_batches,
        totals=batch.totals,
        config=config,
        learning_rate=1e-2,
    )

    assert result.is_skipped
    assert torch.equal(weights(policy), before)
    assert not one_update(policy, config, optimizer).is_skipped


def test_bfloat16_weights_follow_a_float32_master(model_folder):
    model = ModelConfig(path=str(model_folder), device="cpu", dtype="bfloat16")
    policy, config = load_policy(model), run_config()
    optimizer = Optimizer(policy, config.optim)
    before = weights(policy)

    for _ in range(40):
        one_update(policy, config, optimizer, rate=2e-5)

    moved = (weights(policy) - before).abs()
    # each step alone is far below what bfloat16 can tell apart at these weights
    assert moved.max() > 4e-4


def test_a_restored_optimizer_continues_alike(model_folder):
    for dtype in ("float32", "bfloat16"):
        model = ModelConfig(path=str(model_folder), device="cpu", dtype=dtype)
        policy, config = load_policy(model), run_config()
        optimizer = Optimizer(policy, config.optim)
        one_update(policy, config, optimizer)
        other = load_policy(model)
        other.model.load_state_dict(policy.model.state_dict())
        restored = Optimizer(other, config.optim)
        restored.load_state_dict((k, v.clone()) for k, v in optimizer.tensors())

        one_update(policy, config, optimizer)
        one_update(other, config, restored)

        assert torch.equal(weights(policy), weights(other))


def test_recomputing_activations_changes_nothing(policy, model_folder):
    config = run_config()
    lean = load_policy(
        ModelConfig(path=str(model_folder), device="cpu", gradient_checkpointing=True)
    )

    plain_result = one_update(policy, config, Optimizer(policy, config.optim))
    lean_result = one_update(lean, config, Optimizer(lean, config.optim))

    assert lean_result.grad_norm == pytest.approx(plain_result.grad_norm, rel=1e-5)
    assert torch.allclose(weights(lean), weights(policy), atol=1e-5)


def test_an_optimizer_that_forgets_continues_like_a_new_one(model_folder):
    model = ModelConfig(path=str(model_folder), device="cpu", dtype="bfloat16")
    policy, config = load_policy(model), run_config()
    optimizer = Optimizer(policy, config.optim)
    for _ in range(3):
        one_update(policy, config, optimizer)
    other = load_policy(model)
    other.model.load_state_dict(policy.model.state_dict())
    fresh = Optimizer(other, config.optim)
    masters = {k: v for k, v in optimizer.state_dict().items() if k.endswith("master")}
    fresh.load_state_dict(masters.items())

    optimizer.forget()
    one_update(policy, config, optimizer)
    one_update(other, config, fresh)

    assert torch.equal(weights(policy), weights(other))


def test_eight_bit_moments_follow_those_of_float32(tmp_path):
    folder = write_model(tmp_path / "model", hidden_size=128, intermediate_size=256)
    moved = {}
    for kind in ("adamw", "adamw_8bit"):
        policy = load_policy(ModelConfig(path=str(folder), device="cpu"))
        optimizer = Optimizer(policy, OptimConfig(optimizer=kind))
        before = weights(policy)
        for _ in range(3):
            one_update(policy, run_config(), optimizer)
        moved[kind] = weights(policy) - before

    dtypes = {value.dtype for value in optimizer.state_dict().values()}
    assert torch.uint8 in dtypes
    similarity = torch.cosine_similarity(moved["adamw"], moved["adamw_8bit"], dim=0)
    assert similarity > 0.99
    assert not torch.equal(moved["adamw"], moved["adamw_8bit"])


def test_eight_bit_moments_are_restored_as_they_were(tmp_path):
    folder = write_model(tmp_path / "model", hidden_size=128, intermediate_size=256)
    model = ModelConfig(path=str(folder), device="cpu")
    policy, config = load_policy(model), run_config()
    eight_bit = OptimConfig(optimizer="adamw_8bit")
    optimizer = Optimizer(policy, eight_bit)
    one_update(policy, config, optimizer)
    other = load_policy(model)
    other.model.load_state_dict(policy.model.state_dict())
    restored = Optimizer(other, eight_bit)
    restored.load_state_dict((k, v.clone()) for k, v in optimizer.tensors())

    one_update(policy, config, optimizer)
    one_update(other, config, restored)

    assert torch.equal(weights(policy), weights(other))


def test_gradients_reach_their_masters_while_the_pass_continues(model_folder):
    model = ModelConfig(path=str(model_folder), device="cpu", dtype="bfloat16")
    policy, batch = load_policy(model), make_batch(6)
    optimizer = Optimizer(policy, OptimConfig())
    micro_batches = cut(batch, policy, max_tokens=60)
    terms = LossTerms(run_config(), batch.totals)
    parameters = list(policy.model.parameters())
    expected = [torch.zeros(p.shape) for p in parameters]
    for micro in micro_batches:
        loss_of(policy, micro, terms)[0].backward()
        for total, parameter in zip(expected, parameters, strict=True):
            assert parameter.grad is not None
            total += parameter.grad.float()
            parameter.grad = None

    add_gradients(policy, optimizer, micro_batches, terms)

    assert len(micro_batches) > 1
    found = [master.grad for master in optimizer._masters]
    for gradient, total in zip(found, expected, strict=True):
        assert gradient is not None
        assert torch.equal(gradient, total)
    assert all(p.grad is None for p in parameters)


@pytest.mark.parametrize("fails", [False, True])
def test_gradients_are_collected_during_a_pass_only(model_folder, fails):
    """Else another phase's optimizer would take those of this one's weights."""
    model = ModelConfig(path=str(model_folder), device="cpu", dtype="bfloat16")
    policy, batch = load_policy(model), make_batch(6)
    optimizer = Optimizer(policy, OptimConfig())
    micro_batches = cut(batch, policy, max_tokens=60)
    terms = LossTerms(run_config(), batch.totals)
    if fails:
        micro_batches[-1].advantages = torch.zeros(99)
    with pytest.raises(ValueError, match="99") if fails else nullcontext():
        add_gradients(policy, optimizer, micro_batches, terms)
    optimizer.clear()

    loss_of(policy, micro_batches[0], terms)[0].backward()

    assert all(p.grad is not None for p in policy.model.parameters())
    assert all(master.grad is None for master in optimizer._masters)


class Waits(TorchDispatchMode):
    """Notes operations that a GPU would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        has_mask = any(i is not None and i.dtype == torch.bool for i in indices)
        if has_mask or name in ("_local_scalar_dense", "nonzero", "masked_select"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("correction", [None, "sequence_mask"])
@pytest.mark.parametrize("kept", [(), (0, 3)])
def test_an_update_waits_once_for_a_gpu(policy, kept, correction):
    tree = run_config().model_dump()
    tree["loss"] |= {"importance_correction": correction, "entropy_coef": 0.1}
    config, batch = RunConfig.model_validate(tree), make_batch(6)
    optimizer = Optimizer(policy, config.optim)
    micro_batches = cut(batch, policy, max_tokens=60)
    terms = LossTerms(config, batch.totals)
    for micro in micro_batches:  # where tokens lie is found on the host
        loss_of(policy, micro, terms)

    with Waits() as passed:
        found = add_gradients(policy, optimizer, micro_batches, terms, kept=kept)
    with Waits() as applied:
        apply_gradients(optimizer, found, batch.totals, learning_rate=1e-3)

    assert len(micro_batches) > 1
    assert passed.found == []  # nor does it see the one wait, a tolist()
    assert applied.found == []
