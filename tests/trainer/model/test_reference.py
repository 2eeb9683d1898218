"""What the KL is measured against, and when it moves."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.samples import cut, make_batch
from tests.trainer.tiny import config_tree, write_model
from trainer.config import ModelConfig, RunConfig
from trainer.config.run import PhaseConfig
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import (
    BaseReference,
    FrozenReference,
    Reference,
    make_reference,
)


def config_of(model_folder: Path, rows_path: Path, **parts: Any) -> RunConfig:
    tree = config_tree(model_folder, rows_path, loss={"kl_coef": 0.1}, **parts)
    return RunConfig.model_validate(tree)


def made(config: RunConfig, policy: Policy, *, saved: Path | None = None) -> Reference:
    (phase,) = config.phase_configs
    reference = make_reference(phase, policy, saved=saved)
    assert reference is not None
    return reference


def logprobs_of(model: Policy | Reference, policy: Policy) -> torch.Tensor:
    """Log-probs of a made-up batch, one micro-batch after another."""
    batches = cut(make_batch(9), policy, max_tokens=40)
    assert len(batches) > 1
    if isinstance(model, Policy):
        with torch.no_grad():
            found = [model.logprobs(micro, temperature=0.7)[0] for micro in batches]
        return torch.cat([values.flatten() for values in found])
    model.add_logprobs(batches, temperature=0.7)
    return torch.cat([micro.reference_logprobs.flatten() for micro in batches])


def disturb(policy: Policy, *, seed: int = 1) -> None:
    """Change the weights, as steps of training do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += 0.05 * noise.to(parameter.dtype)


def test_no_kl_needs_no_reference(model_folder, rows_path, policy):
    config = RunConfig.model_validate(config_tree(model_folder, rows_path))

    (phase,) = config.phase_configs
    assert make_reference(phase, policy) is None


def test_reference_kinds_none_and_frozen_are_kept_without_a_kl(
    model_folder, rows_path, policy
):
    def of(kind: str) -> Reference | None:
        tree = config_tree(model_folder, rows_path, reference={"kind": kind})
        (phase,) = RunConfig.model_validate(tree).phase_configs
        return make_reference(phase, policy)

    assert of("none") is None
    assert isinstance(of("frozen"), FrozenReference)


def test_a_frozen_reference_stays_where_the_run_started(
    model_folder, rows_path, policy
):
    before = logprobs_of(policy, policy)
    reference = made(config_of(model_folder, rows_path), policy)

    for step in range(1, 4):
        disturb(policy, seed=step)
        reference.after_step(step, policy)

    assert torch.equal(logprobs_of(reference, policy), before)
    assert not torch.allclose(logprobs_of(policy, policy), before)
    assert not reference.has_moved


def test_no_gradient_reaches_a_reference(model_folder, rows_path, policy):
    reference = made(config_of(model_folder, rows_path), policy)
    (micro,) = cut(make_batch(2), policy, max_tokens=1_000)

    reference.add_logprobs([micro], temperature=1.0)

    assert micro.reference_logprobs is not None
    assert not micro.reference_logprobs.requires_grad


def test_a_reset_makes_the_policy_its_own_reference(model_folder, rows_path, policy):
    config = config_of(model_folder, rows_path, reference={"reset_every_steps": 2})
    reference = made(config, policy)
    start = logprobs_of(reference, policy)

    disturb(policy)
    reference.after_step(1, policy)
    assert torch.equal(logprobs_of(reference, policy), start)
    reference.after_step(2, policy)

    assert torch.equal(logprobs_of(reference, policy), logprobs_of(policy, policy))
    assert reference.has_moved


def test_after_a_reset_the_policy_goes_its_own_way(model_folder, rows_path, policy):
    config = config_of(model_folder, rows_path, reference={"reset_every_steps": 1})
    reference = made(config, policy)
    reference.after_step(1, policy)
    kept = logprobs_of(reference, policy)

    disturb(policy)

    assert torch.equal(logprobs_of(reference, policy), kept)


def test_mixing_takes_a_share_of_the_policys_weights(model_folder, rows_path, policy):
    mixes = {"mix_every_steps": 3, "mix_alpha": 0.25}
    config = config_of(model_folder, rows_path, reference=mixes)
    reference = made(config, policy)
    assert isinstance(reference, FrozenReference)
    start = {name: weight.clone() for name, weight in policy.weights()}
    disturb(policy)
    moved = dict(policy.weights())

    for step in (1, 2, 3):
        reference.after_step(step, policy)

    # the tied output embedding too is mixed once, not twice
    mixed = reference.policy.model.state_dict()
    for name, weight in start.items():
        torch.testing.assert_close(mixed[name], 0.25 * moved[name] + 0.75 * weight)
    assert mixed["lm_head.weight"] is not None
    assert torch.equal(mixed["lm_head.weight"], mixed["model.embed_tokens.weight"])


def test_mixing_again_and_again_ends_at_the_policy(model_folder, rows_path, policy):
    mixes = {"mix_every_steps": 1, "mix_alpha": 0.5}
    reference = made(config_of(model_folder, rows_path, reference=mixes), policy)
    disturb(policy)

    for step in range(1, 40):
        reference.after_step(step, policy)

    torch.testing.assert_close(
        logprobs_of(reference, policy), logprobs_of(policy, policy)
    )


def test_small_shares_add_up_in_bfloat16(model_folder, rows_path):
    bfloat16 = {"dtype": "bfloat16", "path": str(model_folder)}
    mixes = {"mix_every_steps": 1, "mix_alpha": 0.01}
    config = config_of(model_folder, rows_path, model=bfloat16, reference=mixes)
    policy = load_policy(config.model)
    reference = made(config, policy)
    assert isinstance(reference, FrozenReference)
    name, weight = next(iter(policy.weights()))
    start = weight.float()
    with torch.no_grad():
        weight *= 1.02  # five steps of bfloat16 at most; a hundredth of it is none

    for step in range(1, 401):
        reference.after_step(step, policy)

    kept = dict(reference.policy.model.named_parameters())[name].float()
    left = (kept - weight.float()).norm() / (start - weight.float()).norm()
    assert left < 0.2  # 0.99^400 = 0.018, and what bfloat16 rounds


def test_a_reset_goes_before_a_mix_that_is_due_too(model_folder, rows_path, policy):
    both = {"reset_every_steps": 2, "mix_every_steps": 1, "mix_alpha": 0.5}
    reference = made(config_of(model_folder, rows_path, reference=both), policy)
    disturb(policy)

    reference.after_step(2, policy)

    assert torch.equal(logprobs_of(reference, policy), logprobs_of(policy, policy))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_moved_reference_is_saved_and_continues_exactly(
    tmp_path, model_folder, rows_path, dtype
):
    mixes = {"mix_every_steps": 1, "mix_alpha": 0.3}
    model = {"path": str(model_folder), "dtype": dtype}
    config = config_of(model_folder, rows_path, model=model, reference=mixes)
    policy = load_policy(config.model)
    reference = made(config, policy)
    disturb(policy)
    reference.after_step(1, policy)

    reference.save(tmp_path / "reference")
    again = made(config, policy, saved=tmp_path / "reference")

    assert again.has_moved
    for step in (2, 3):
        disturb(policy, seed=step)
        reference.after_step(step, policy)
        again.after_step(step, policy)
        assert torch.equal(logprobs_of(again, policy), logprobs_of(reference, policy))


def test_the_saved_reference_of_another_model_is_refused(
    tmp_path, model_folder, rows_path, policy
):
    resets = {"reset_every_steps": 1}
    config = config_of(model_folder, rows_path, reference=resets)
    made(config, policy).save(tmp_path / "reference")
    other = write_model(tmp_path / "other", hidden_size=64)
    config = config_of(other, rows_path, reference=resets)

    with pytest.raises(ValueError, match="another model"):
        made(config, policy, saved=tmp_path / "reference")


def test_a_later_phase_may_start_from_the_policy_as_it_is(
    model_folder, rows_path, policy
):
    disturb(policy)
    here = logprobs_of(policy, policy)

    config = config_of(model_folder, rows_path)
    phase = PhaseConfig(name="later", first_step=2, config=config)

    reference = make_reference(phase, policy)
    disturb(policy, seed=2)

    assert reference is not None
    assert torch.equal(logprobs_of(reference, policy), here)
    assert reference.has_moved  # so that a checkpoint holds it


def adapted(model_folder: Path) -> dict[str, Any]:
    return {"path": str(model_folder), "lora_rank": 4}


def test_the_base_under_adapters_equals_the_model_loaded_by_itself(
    model_folder, rows_path, policy
):
    config = config_of(model_folder, rows_path, model=adapted(model_folder))
    trained = load_policy(config.model)
    reference = made(config, trained)
    assert isinstance(reference, BaseReference)

    disturb(trained)

    base = logprobs_of(policy, policy)
    # by transformers' pass where there are adapters, so the last bits may differ
    torch.testing.assert_close(
        logprobs_of(reference, trained), base, atol=1e-6, rtol=1e-6
    )
    assert not torch.allclose(logprobs_of(trained, trained), base)
    assert torch.equal(reference.policy.head.weight, policy.head.weight)


def test_asking_the_base_leaves_the_adapters_as_they_were(model_folder, rows_path):
    config = config_of(model_folder, rows_path, model=adapted(model_folder))
    trained = load_policy(config.model)
    reference = made(config, trained)
    disturb(trained)
    before = logprobs_of(trained, trained)
    trainable = [p.requires_grad for p in trained.model.parameters()]

    logprobs_of(reference, trained)
    with pytest.raises(ZeroDivisionError), trained.adapters_off():
        raise ZeroDivisionError

    assert torch.equal(logprobs_of(trained, trained), before)
    assert [p.requires_grad for p in trained.model.parameters()] == trainable


def test_the_base_shares_the_policys_weights(model_folder, rows_path):
    config = config_of(model_folder, rows_path, model=adapted(model_folder))
    trained = load_policy(config.model)
    reference = made(config, trained)
    (micro,) = cut(make_batch(2), trained, max_tokens=1_000)
    micro.layout(trained.model.dtype)  # which the policy's own pass makes, and keeps
    live = _bytes_alive()

    reference.add_logprobs([micro], temperature=1.0)

    assert isinstance(reference, BaseReference)
    assert reference.policy is trained
    # what was asked for is all that stayed
    assert micro.reference_logprobs is not None
    assert _bytes_alive() - live <= micro.reference_logprobs.nbytes + 64


def _bytes_alive() -> int:
    """Bytes of all tensors that anything holds, each memory counted once."""
    import gc

    gc.collect()
    kept = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
    return sum(kept.values())


def test_a_frozen_reference_of_an_adapted_policy_takes_over_its_adapters(
    model_folder, rows_path
):
    resets = {"kind": "frozen", "reset_every_steps": 1}
    config = config_of(
        model_folder, rows_path, model=adapted(model_folder), reference=resets
    )
    trained = load_policy(config.model)
    reference = made(config, trained)
    disturb(trained)

    reference.after_step(1, trained)

    torch.testing.assert_close(
        logprobs_of(reference, trained), logprobs_of(trained, trained)
    )


@pytest.mark.parametrize(
    ("first_step", "reference", "expected"),
    [
        (1, {"kind": "frozen"}, "4bit"),
        (1, {"kind": "frozen", "reset_every_steps": 1}, "none"),
        (1, {"kind": "frozen", "mix_every_steps": 1}, "none"),
        (2, {"kind": "frozen"}, "none"),
    ],
)
def test_only_a_reference_that_never_moves_is_kept_in_four_bits(
    model_folder, rows_path, policy, monkeypatch, first_step, reference, expected
):
    asked: list[ModelConfig] = []

    def load(config: ModelConfig) -> Policy:
        asked.append(config)
        return load_policy(config.model_copy(update={"quantization": "none"}))

    monkeypatch.setattr("trainer.model.reference.load_policy", load)
    model = adapted(model_folder) | {"quantization": "4bit"}

    config = config_of(model_folder, rows_path, model=model, reference=reference)
    make_reference(PhaseConfig(name="", first_step=first_step, config=config), policy)

    assert [config.quantization for config in asked] == [expected]


def test_a_reference_does_not_train_and_has_no_adapters(model_folder, rows_path):
    model = adapted(model_folder) | {"gradient_checkpointing": True}
    config = config_of(
        model_folder, rows_path, model=model, reference={"kind": "frozen"}
    )

    reference = made(config, load_policy(ModelConfig(path=str(model_folder))))

    assert isinstance(reference, FrozenReference)
    assert not reference.policy.has_adapters
    assert not reference.policy.model.training
    assert not any(p.requires_grad for p in reference.policy.model.parameters())
