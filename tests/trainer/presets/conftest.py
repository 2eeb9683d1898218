"""A starter so small that it is taught within seconds, and its rows."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bench.starter.countdown import (
    Manner,
    Teaching,
    all_problems,
    build_tokenizer,
    prompt_for,
    teach,
)

# So few problems that even this model knows some answers by heart: without right and
# wrong ones in a group there is nothing to learn.
NUM_PROBLEMS, NUM_ROWS = 12, 160
MANNER = Manner(hit_rate=0.5, give_up_rate=1.0)


@pytest.fixture(scope="session")
def starter(tmp_path_factory) -> Path:
    return make_starter(tmp_path_factory.mktemp("starter"), num_steps=160)


@pytest.fixture(scope="session")
def hardly_taught(tmp_path_factory) -> Path:
    """Enough where rewards differ without a right answer."""
    return make_starter(tmp_path_factory.mktemp("hardly"), num_steps=20)


def make_starter(folder: Path, *, num_steps: int) -> Path:
    problems = all_problems()[:NUM_PROBLEMS]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    teach(
        model,
        tokenizer,
        problems,
        teaching=Teaching(
            num_steps=num_steps, batch_size=16, max_tries=1, skill=MANNER, habit=MANNER
        ),
        seed=0,
        report=lambda step, loss: None,
    )
    torch.set_num_threads(num_threads)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(str(folder / "model"))

    chance = random.Random(0)
    rows = [problems[index % NUM_PROBLEMS] for index in range(NUM_ROWS)]
    (folder / "rows.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "prompt": prompt_for(problem, chance),
                    "answer": str(problem.target),
                    "columns": {
                        "numbers": list(problem.numbers),
                        "target": problem.target,
                    },
                }
            )
            + "\n"
            for problem in rows
        )
    )
    return folder
