"""Decoding with nothing but the arithmetic equals transformers' own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from trainer.config import ModelConfig
from trainer.policy import Policy, load_policy
from trainer.rollout import llama
from trainer.rollout.cache import make_cache
from trainer.rollout.decoder import AnyDecoder, Decoder, make_decoder
from trainer.rollout.llama import LlamaDecoder

SIZES: dict[str, Any] = {
    "vocab_size": 36,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "initializer_range": 0.3,
}
SCALED_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True),
    "llama 3": LlamaConfig(**SIZES, rope_parameters=SCALED_ROPE),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "one head each": LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
}


def policy_of(
    folder: Path, config: PreTrainedConfig, tokenizer: Path, *, dtype: str = "float32"
) -> Policy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are constant at first
            parameter += 0.05 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    settings = ModelConfig(path=str(folder), device="cpu", dtype=dtype)
    return load_policy(settings, tokenizer_path=str(tokenizer))


def hidden_states(
    policy: Policy, kind: type[Any], *, padded: bool, num_steps: int = 68
) -> torch.Tensor:
    """Of some tokens more for four rows, of which two leave after the first."""
    torch.manual_seed(1)
    ids = torch.randint(2, 36, (4, 7))
    padding = torch.ones_like(ids)
    if padded:
        padding[1, :3] = padding[3, :5] = 0
    cache = make_cache(policy.model.config)
    with torch.inference_mode():
        policy.body(
            input_ids=ids,
            attention_mask=padding,
            position_ids=(padding.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
        owners = torch.tensor([0, 1, 1, 3])
        decoder: Decoder = (
            LlamaDecoder(policy, cache, padding, owners, max_new_tokens=num_steps)
            if kind is LlamaDecoder
            else AnyDecoder(policy, cache, padding, owners)
        )
        positions = padding.sum(dim=1)[owners]
        found = [decoder.step(torch.tensor([5, 6, 7, 8]), positions)]
        stay = torch.tensor([1, 2])
        decoder.keep(stay)
        positions = positions[stay] + 1
        found.append(decoder.step(torch.tensor([9, 10]), positions))
        for place in range(1, num_steps - 2):  # further than the room made at first
            chosen = torch.tensor([2 + place % 34, 35 - place % 34])
            found.append(decoder.step(chosen, positions + place))
    return torch.cat(found).float()


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_equals_that_of_transformers(
    kind: str,
    padded: bool,
    packs: bool,
    tmp_path: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama, "_MAX_PACKED_BYTES", 2**30 if packs else 0)
    policy = policy_of(tmp_path, KINDS[kind], model_folder)

    lean = hidden_states(policy, LlamaDecoder, padded=padded)
    plain = hidden_states(policy, AnyDecoder, padded=padded)

    torch.testing.assert_close(lean, plain, rtol=1e-4, atol=1e-4)


def test_a_step_in_bfloat16_is_as_near_as_its_numbers_are(
    tmp_path: Path, model_folder: Path
) -> None:
    policy = policy_of(tmp_path, KINDS["qwen3"], model_folder, dtype="bfloat16")

    lean = hidden_states(policy, LlamaDecoder, padded=True, num_steps=3)
    plain = hidden_states(policy, AnyDecoder, padded=True, num_steps=3)

    torch.testing.assert_close(lean, plain, rtol=0.05, atol=0.05)


def decoder_of(policy: Policy) -> Decoder:
    cache, rows = make_cache(policy.model.config), torch.arange(2)
    with torch.inference_mode():
        policy.body(
            input_ids=torch.full((2, 3), 5), past_key_values=cache, use_cache=True
        )
        return make_decoder(
            policy, cache, torch.ones(2, 3).long(), rows, max_new_tokens=4
        )


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_models_built_like_llama_are_decoded_lean(
    kind: str, tmp_path: Path, model_folder: Path
) -> None:
    policy = policy_of(tmp_path, KINDS[kind], model_folder)

    assert isinstance(decoder_of(policy), LlamaDecoder)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SIZES, sliding_window=4),
        LlamaConfig(
            **SIZES,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        ),
    ],
)
def test_what_is_not_known_is_left_to_transformers(
    config: PreTrainedConfig, tmp_path: Path, model_folder: Path
) -> None:
    policy = policy_of(tmp_path, config, model_folder)

    assert isinstance(decoder_of(policy), AnyDecoder)


def test_a_model_with_adapters_is_left_to_transformers(model_folder: Path) -> None:
    settings = ModelConfig(path=str(model_folder), device="cpu", lora_rank=2)

    assert isinstance(decoder_of(load_policy(settings)), AnyDecoder)
