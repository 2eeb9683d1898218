"""What a checkpoint holds beside model and optimizer, and that it is verified."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.model.test_adapters import (
    adapt_as_on_a_gpu,
    adapted,
    disturb,
    logits_of,
)
from tests.trainer.tiny import config_tree
from trainer.config import ModelConfig, OptimConfig, RunConfig
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import make_reference
from trainer.output.checkpoint import (
    restore_optimizer,
    restore_policy,
    save_checkpoint,
    saved_controllers,
    saved_reference,
    verify_checkpoint,
)


def saved(folder: Path, policy: Policy, **parts: object) -> Path:
    optimizer = Optimizer(policy, OptimConfig(learning_rate=1e-2))
    _step(policy, optimizer)
    made = save_checkpoint(
        folder,
        step=3,
        attempt=1,
        policy=policy,
        optimizer=optimizer,
        **({"controllers": {}} | parts),
    )
    return folder / made.name


def _step(policy: Policy, optimizer: Optimizer) -> None:
    logits = policy.model(input_ids=torch.arange(2, 20)[None]).logits
    with optimizer.collecting():
        logits.square().mean().backward()
    optimizer.step(optimizer.gradient_norm(), learning_rate=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_with_adapters_continues_exactly(
    tmp_path, model_folder, monkeypatch, dtype
):
    adapt_as_on_a_gpu(monkeypatch)
    policy = disturb(adapted(model_folder, dtype=dtype))
    optimizer = Optimizer(policy, OptimConfig(learning_rate=1e-2))
    _step(policy, optimizer)
    name = save_checkpoint(
        tmp_path, step=1, attempt=1, policy=policy, optimizer=optimizer, controllers={}
    ).name

    settings = {"path": str(model_folder), "device": "cpu", "dtype": dtype}
    config = ModelConfig(**settings, lora_rank=4)
    again = restore_policy(config, tmp_path / name)
    optimizer_again = Optimizer(again, OptimConfig(learning_rate=1e-2))
    restore_optimizer(tmp_path / name, optimizer_again)

    state = optimizer.state_dict()
    assert (dtype == "bfloat16") == any(name.endswith("master") for name in state)
    for key, value in optimizer_again.state_dict().items():
        assert torch.equal(value, state[key]), key
    for _ in range(2):
        assert torch.equal(logits_of(again.model), logits_of(policy.model))
        _step(policy, optimizer)
        _step(again, optimizer_again)
    with again.adapters_off():
        base = load_policy(ModelConfig(**settings))
        assert torch.equal(logits_of(again.model), logits_of(base.model))


def test_the_model_of_a_run_with_adapters_stands_by_itself(tmp_path, model_folder):
    policy = disturb(adapted(model_folder))
    path = saved(tmp_path, policy)

    plain = AutoModelForCausalLM.from_pretrained(path / "model")
    next_run = restore_policy(ModelConfig(path=str(path / "model"), device="cpu"), None)

    torch.testing.assert_close(logits_of(plain), logits_of(policy.model))
    assert torch.equal(logits_of(next_run.model), logits_of(plain))


def test_adapters_are_asked_of_a_checkpoint_that_has_none(
    tmp_path, policy, model_folder
):
    path = saved(tmp_path, policy)

    with pytest.raises(ValueError, match=r"lora_rank is 4"):
        restore_policy(ModelConfig(path=str(model_folder), lora_rank=4), path)


def test_adapters_over_another_base_are_refused(tmp_path, model_folder):
    base = tmp_path / "base"
    load_policy(ModelConfig(path=str(model_folder), device="cpu")).save(base)
    path = saved(tmp_path, adapted(base))
    moved = load_policy(ModelConfig(path=str(base), device="cpu"))
    with torch.no_grad():
        moved.model.model.layers[0].mlp.down_proj.weight += 0.01
    moved.save(base)

    with pytest.raises(ValueError, match="the adapters"):
        restore_policy(ModelConfig(path=str(base), device="cpu", lora_rank=4), path)


def test_a_reference_is_saved_once_it_has_moved(
    tmp_path, policy, model_folder, rows_path
):
    tree = config_tree(
        model_folder,
        rows_path,
        loss={"kl_coef": 0.1},
        reference={"reset_every_steps": 2},
    )
    reference = make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)
    assert reference is not None

    reference.after_step(1, policy)
    before = saved(tmp_path / "before", policy, reference=reference)
    reference.after_step(2, policy)
    after = saved(tmp_path / "after", policy, reference=reference)

    assert saved_reference(before) is None
    assert saved_reference(after) == after / "reference"


@pytest.mark.parametrize("part", ["reference", "adapters", "controllers.json"])
def test_each_part_is_verified(tmp_path, model_folder, rows_path, part):
    policy = adapted(model_folder)
    tree = config_tree(
        model_folder,
        rows_path,
        model={"lora_rank": 4},
        reference={"kind": "frozen", "reset_every_steps": 1},
    )
    reference = make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)
    assert reference is not None
    reference.after_step(1, policy)
    path = saved(
        tmp_path, policy, reference=reference, controllers={"kl": {"coef": 0.25}}
    )
    verify_checkpoint(path)

    found = path / part
    file = found if found.is_file() else next(found.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    with pytest.raises(ValueError, match="SHA-256"):
        verify_checkpoint(path)


def test_controllers_come_back_as_they_were(tmp_path, policy):
    state = {"kl": {"coef": 0.1 + 0.2, "seen": [1, None]}}

    path = saved(tmp_path, policy, controllers=state)

    assert saved_controllers(path) == state
