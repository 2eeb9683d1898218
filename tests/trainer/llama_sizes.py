"""Sizes of a made-up Llama, and a run of it whose memory is counted by hand."""

from pathlib import Path
from typing import Any

from tests.trainer.tiny import config_tree
from trainer.config import RunConfig

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1_000,
    "head_dim": 16,
}
LLAMA = SIZES | {"model_type": "llama", "tie_word_embeddings": True}


def config_of(**parts: Any) -> RunConfig:
    """Micro-batches of 2 sequences of 48 tokens, 8 sequences an update."""
    tree = config_tree(
        Path("nowhere"),
        Path("rows.jsonl"),
        **{
            "data": {"max_prompt_tokens": 16},
            "rollout": {
                "prompts_per_step": 4,
                "group_size": 2,
                "max_new_tokens": 32,
            },
            "optim": {"num_steps": 1, "micro_batch_tokens": 100},
            "evaluation": {"every_steps": 0},
        }
        | parts,
    )
    return RunConfig.model_validate(tree)
