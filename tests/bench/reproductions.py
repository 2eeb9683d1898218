"""Makes the models and rows of reproductions that a CPU can run.

`python -m tests.bench.reproductions [FOLDER]`, seconds. `trainer/starter/rlox` and
`trainer/starter/arithmetic` are what it wrote.
"""

import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.bench.starter.__main__ import STARTERS
from trainer.seeding import seed_torch

NUM_TOKENS, PROMPT_TOKENS, NUM_PROMPTS = 100, 5, 40
LARGEST, NUM_SUMS = 30, 384  # of a sum's terms; rows
EXAMPLE = "2 + 3 = 5\n"


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else STARTERS
    transformers.logging.disable_progress_bar()
    write_toy(folder / "rlox")
    write(folder / "arithmetic", sums())


def write_toy(folder: Path) -> None:
    """Write an untrained model of one layer, and prompts of random tokens."""
    seed_torch(0)
    words = ["<pad>", "<end>", *(f"t{n}" for n in range(2, NUM_TOKENS))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=NUM_TOKENS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    model.save_pretrained(folder / "model")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    ).save_pretrained(str(folder / "model"))
    chance = random.Random(0)
    prompts = (chance.choices(words[2:], k=PROMPT_TOKENS) for _ in range(NUM_PROMPTS))
    write(folder, [{"prompt": " ".join(prompt), "answer": None} for prompt in prompts])


def sums() -> list[dict[str, Any]]:
    """Return different sums of two numbers up to 30, each behind an example."""
    terms = [(a, b) for a in range(1, LARGEST + 1) for b in range(1, LARGEST + 1)]
    return [
        {"prompt": f"{EXAMPLE}{a} + {b} =", "answer": str(a + b)}
        for a, b in random.Random(0).sample(terms, NUM_SUMS)
    ]


def write(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row | {"columns": {}}) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "starter.json").write_text('{"seed": 0}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
