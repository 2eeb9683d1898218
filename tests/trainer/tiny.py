"""A random Qwen2 of 13,000 parameters with a tokenizer of single characters."""

import contextlib
import io
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.environment import child_environment
from trainer.__main__ import main

ROOT = Path(__file__).parents[2]
CHARACTERS = "abcdefgh0123456789+-*/=()<> .,:>!?\n"


def write_tokenizer(folder: Path) -> int:
    """Write the tokenizer; returns the size of its vocabulary."""
    tokens = ["<pad>", "<eos>", *dict.fromkeys(CHARACTERS)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    return len(tokens)


def write_model(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    settings = {
        "vocab_size": write_tokenizer(folder),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "initializer_range": 0.2,  # so that the distributions are far from uniform
    }
    torch.manual_seed(seed)
    Qwen2ForCausalLM(Qwen2Config(**(settings | changes))).save_pretrained(folder)
    return folder


def write_rows(path: Path, count: int = 24) -> Path:
    rows = (
        {"prompt": f"{7 * n}+{n}=", "answer": str(8 * n), "columns": {"n": n}}
        for n in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_tree(
    model_path: Path, rows: Path, /, **parts: dict[str, Any]
) -> dict[str, Any]:
    """A run of a few quick steps; keyword arguments change its parts."""
    tree: dict[str, dict[str, Any]] = {
        "model": {"path": str(model_path)},
        "data": {"rows": str(rows), "num_eval_rows": 4},
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12},
        "reward": {
            "recipe": {
                "rules": [
                    {
                        "name": "short",
                        "kind": "length",
                        "params": {"maximum": 2, "soft_edge": 12},
                    }
                ]
            }
        },
        "optim": {"num_steps": 6, "learning_rate": 1e-2, "micro_batch_tokens": 64},
        "evaluation": {"every_steps": 3, "samples_per_prompt": 2},
        "checkpoint": {"every_steps": 2, "keep_last": 10},
        "distributed": {"num_threads": 1},
    }
    for name, values in parts.items():
        tree[name] = tree.get(name, {}) | values
    return tree


def write_config(folder: Path, tree: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    path.write_text(json.dumps(tree))
    return path


@dataclass(frozen=True)
class Done:
    returncode: int
    stderr: str


def run_trainer(*arguments: object) -> Done:
    """Run a command in this process: loading torch again takes many times longer."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    num_threads = torch.get_num_threads()
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            code = main([str(each) for each in arguments])
    finally:
        torch.set_num_threads(num_threads)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(code, errors.getvalue())


def start_trainer(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    environment = options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", *(str(each) for each in arguments)],
        cwd=options.pop("cwd", ROOT),
        env=child_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]
