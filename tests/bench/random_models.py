"""Models of published sizes with random weights, made here: nothing is downloaded.

What a step costs depends on a model's sizes and the lengths of its texts. Random
weights give the first exactly; lengths are made certain by an end-of-text token that
the model has no output for, so that every completion runs to the limit in
every engine.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config
from transformers.utils import logging

_QWEN = {
    "vocab_size": 151_936,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# As in the config.json of Qwen/Qwen2.5-0.5B and Qwen/Qwen2.5-1.5B (arXiv:2412.15115,
# table 1); tiny is for trying a command out. SmolLM2-135M (arXiv:2502.02737) has the
# same layers but for biases of queries, keys and values.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": _QWEN
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 2_048,
    },
    "SmolLM2-135M": _QWEN
    | {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8_192,
        "rms_norm_eps": 1e-5,
    },
    "0.5B": _QWEN
    | {
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1.5B": _QWEN
    | {
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
}
_NUM_ROWS, _SHORTEST, _LONGEST = 256, 64, 128
_COMPLETE = "complete"


def config_of(name: str) -> Qwen2Config:
    """A model's sizes. No end-of-text token: that one is in the tokenizer alone."""
    return Qwen2Config(
        **SIZES[name], bos_token_id=None, eos_token_id=None, pad_token_id=0
    )


def make_model(
    name: str, folder: Path, *, dtype: str = "float32", device: str = "cpu"
) -> Path:
    """The folder of the model, beside rows.jsonl; made if it is not there yet."""
    place = folder / f"{name}-{dtype}"
    if (place / _COMPLETE).exists():
        return place / "model"
    shutil.rmtree(place, ignore_errors=True)  # one that was left half made
    logging.disable_progress_bar()
    config = config_of(name)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(place / "model")
    make_tokenizer(config.vocab_size).save_pretrained(place / "model")
    _write_rows(place / "rows.jsonl", config.vocab_size)
    (place / _COMPLETE).touch()
    return place / "model"


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A word for each token, and one more that ends a text."""
    words = ["<pad>", *map(_word, range(1, vocab_size)), "<end>"]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _word(token: int) -> str:
    return f"w{token}"


def _write_rows(path: Path, vocab_size: int) -> None:
    rng = random.Random(0)
    with path.open("w") as file:
        for _ in range(_NUM_ROWS):
            length = rng.randint(_SHORTEST, _LONGEST)
            words = (_word(rng.randrange(1, vocab_size)) for _ in range(length))
            file.write(json.dumps({"prompt": " ".join(words), "answer": "0"}) + "\n")
