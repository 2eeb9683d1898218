"""A model's sizes, against models themselves and their cards."""

import re

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.trainer.architectures import kinds_on_page
from tests.trainer.llama_sizes import LLAMA, SIZES
from tests.trainer.tiny_architectures import ARCHITECTURES
from trainer.sizes.model_sizes import Dimensions, dimensions_of


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
def test_the_number_of_weights_is_that_of_the_model(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)

    sizes = dimensions_of(config.to_dict())

    assert sizes.num_parameters == pytest.approx(model.num_parameters(), rel=0.01)


def test_published_sizes_are_met():
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


def test_a_text_model_inside_another_is_found():
    assert dimensions_of({"model_type": "seer", "text_config": LLAMA}) == dimensions_of(
        LLAMA
    )


def test_the_worked_example_holds():
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


def test_the_estimate_takes_the_form_of_updates_that_the_architecture_has():
    kinds, wrong, num_known = kinds_on_page(), {}, 0
    for name, architecture in ARCHITECTURES.items():
        base = re.sub(r" \([^)]*\)$", "", name)
        form, _ = kinds.get(name, kinds.get(base, ("", "")))
        try:
            found = dimensions_of(architecture.config().to_dict()).form
        except ValueError:  # the sizes of this kind are not known
            continue
        num_known += 1
        if form not in ("", found):
            wrong[name] = found

    assert wrong == {}
    assert num_known > 90


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"model_type": "mistral", "sliding_window": 4096},
    ],
)
def test_a_llama_with_another_layer_is_packed_as_transformers_has_it(changes):
    assert dimensions_of(LLAMA).form == "flat"
    assert dimensions_of(LLAMA | changes).form == "packed"
