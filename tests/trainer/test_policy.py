"""Models of other kinds than Llama: their log-probs are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    FalconConfig,
    OPTConfig,
    PhimoeConfig,
    PreTrainedConfig,
    SeedOssConfig,
)
from transformers.models.granite.modeling_granite import GraniteDecoderLayer

from tests.trainer.samples import cut, make_batch
from tests.trainer.test_attention import OTHERS
from tests.trainer.test_decoder import SIZES, policy_of
from trainer.model.policy import Policy

CHECKPOINTING = {"gradient_checkpointing": True}
# They drop units, or choose experts by chance, in their layers themselves.
NOISY: dict[str, PreTrainedConfig] = {
    "seed-oss": SeedOssConfig(
        **SIZES, head_dim=8, residual_dropout=0.3, attention_dropout=0.3
    ),
    "opt": OPTConfig(
        **SIZES, ffn_dim=48, word_embed_proj_dim=32, dropout=0.3, layerdrop=0.5
    ),
    "phimoe": PhimoeConfig(
        **SIZES,
        num_local_experts=4,
        router_jitter_noise=0.1,
        input_jitter_noise=0.1,
        attention_dropout=0.3,
    ),
}


def logprobs(policy: Policy) -> torch.Tensor:
    [micro] = cut(make_batch(6), policy, max_tokens=1_000)
    found, _ = policy.logprobs(micro, temperature=1.0)
    return found


@pytest.mark.parametrize("kind", NOISY)
def test_gradient_checkpointing_changes_no_log_prob(
    kind: str, tmp_path: Path, model_folder: Path
) -> None:
    policy = policy_of(tmp_path, NOISY[kind], model_folder)
    expected = logprobs(policy)
    policy.set_checkpointing(on=True)

    found = logprobs(policy)

    assert policy.model.is_activation_checkpointing
    assert torch.equal(found, expected)
    with policy.evaluating():
        assert not any(module.training for module in policy.model.modules())
    assert torch.equal(logprobs(policy), expected)


def test_a_model_that_checkpointing_changes_is_refused(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = GraniteDecoderLayer.forward

    def noisy(self: Any, *args: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor = forward(self, *args, **options)
        return found + 1e-3 * torch.rand_like(found) if self.training else found

    monkeypatch.setattr(GraniteDecoderLayer, "forward", noisy)

    with pytest.raises(ValueError, match=r"model\.gradient_checkpointing"):
        policy_of(tmp_path, OTHERS["granite"], model_folder, **CHECKPOINTING)
    policy_of(tmp_path, OTHERS["granite"], model_folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BloomConfig(**SIZES, n_head=4, n_layer=2, attention_dropout=0.1),
        lambda: FalconConfig(**SIZES, alibi=True, attention_dropout=0.1),
    ],
    ids=["bloom", "falcon"],
)
def test_a_dropout_module_by_the_name_of_a_setting_stays_a_module(
    make: Callable[[], PreTrainedConfig], tmp_path: Path, model_folder: Path
) -> None:
    policy = policy_of(tmp_path, make(), model_folder)
    policy.model.train()

    assert torch.equal(logprobs(policy), logprobs(policy))
