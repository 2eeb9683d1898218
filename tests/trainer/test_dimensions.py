"""A model's sizes, against models themselves and their cards."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.trainer.sizes import LLAMA, SIZES
from tests.trainer.test_decoder import KINDS
from tests.trainer.test_decoder import SIZES as SMALL
from trainer.model.loading import is_built_like_llama
from trainer.model_sizes import Dimensions, dimensions_of


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        LlamaConfig(**SIZES, tie_word_embeddings=True),
        Qwen2Config(**SIZES),
        Qwen3Config(**SIZES),
        GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=1_000, n_positions=128),
        Qwen3MoeConfig(
            **SIZES, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2
        ),
    ],
    ids=lambda config: config.model_type,
)
def test_the_number_of_weights_is_that_of_the_model(config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)

    sizes = dimensions_of(config.to_dict())

    assert sizes.num_parameters == pytest.approx(model.num_parameters(), rel=0.01)


def test_published_sizes_are_met() -> None:
    # Qwen2.5-7B and Llama-3.2-1B as their model cards give them: 7.61 and 1.24 billion
    qwen = dimensions_of(
        {
            "model_type": "qwen2",
            "hidden_size": 3_584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152_064,
            "tie_word_embeddings": False,
        }
    )
    llama = dimensions_of(
        {
            "model_type": "llama",
            "hidden_size": 2_048,
            "intermediate_size": 8_192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
        }
    )

    assert round(qwen.num_parameters / 1e9, 1) == 7.6
    assert round(llama.num_parameters / 1e9, 2) == 1.24


def test_a_text_model_inside_another_is_found() -> None:
    assert dimensions_of({"model_type": "seer", "text_config": LLAMA}) == dimensions_of(
        LLAMA
    )


def test_the_worked_example_holds() -> None:
    sizes = Dimensions(
        layers=2,
        hidden=8,
        heads=2,
        kv_heads=1,
        head_size=4,
        inner=16,
        vocabulary=100,
        positions=0,
        is_gated=True,
        is_tied=True,
    )

    # layers of attention 64 + 32 + 32 + 64 and MLP 3 x 128, embedding 800, norms 5 x 8
    assert sizes.num_parameters == 2 * (192 + 384) + 800 + 40


@pytest.mark.parametrize(
    "config",
    [
        *KINDS.values(),
        MistralConfig(**SMALL, sliding_window=4),
        Qwen2Config(
            **SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1
        ),
        LlamaConfig(**SMALL, hidden_act="gelu"),
        GPT2Config(n_embd=32, n_layer=1, n_head=2),
    ],
)
def test_the_estimate_knows_which_models_are_trained_without_padding(
    config: PreTrainedConfig,
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)

    assert dimensions_of(config.to_dict()).is_flat == is_built_like_llama(model)
