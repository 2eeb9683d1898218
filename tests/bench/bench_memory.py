"""Estimated against measured memory: real runs of small models, each in a process.

    python tests/bench/bench_memory.py

What is measured is the highest resident memory of two steps, less that of the same
two steps with a model of next to nothing, which is the program itself. It is measured
twice: with large blocks given back when they are freed, which is what the run needs,
and with glibc's own rule, which keeps freed blocks of up to 32 MiB for later.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.machine import heading, say
from tests.trainer.tiny import start_trainer, write_model
from trainer.config import RunConfig
from trainer.memory import MemoryEstimate, estimate

VOCABULARY, PROMPT, COMPLETION = 32_000, 64, 64


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    parts: dict[str, dict[str, Any]]


CASES = (
    Case(name="all weights", parts={}),
    Case(
        name="all weights, recomputing activations, frozen reference",
        parts={"model": {"gradient_checkpointing": True}, "loss": {"kl_coef": 0.01}},
    ),
    Case(
        name="LoRA of rank 16, its base as reference",
        parts={"model": {"lora_rank": 16}, "loss": {"kl_coef": 0.01}},
    ),
    Case(
        name="LoRA of rank 16, recomputing activations",
        parts={"model": {"lora_rank": 16, "gradient_checkpointing": True}},
    ),
    Case(
        name="LoRA of rank 16 over 4 bits, moments in 8",
        parts={
            "model": {"lora_rank": 16, "quantization": "4bit"},
            "optim": {"optimizer": "adamw_8bit"},
        },
    ),
    Case(
        name="all weights, twice as many tokens at once",
        parts={"optim": {"micro_batch_tokens": 2_048}},
    ),
)


def write_llama(folder: Path) -> Path:
    write_model(folder)  # its tokenizer, one token a character
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1_376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def tree(model: Path, rows: Path, case: Case) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {
        "model": {"path": str(model), "device": "cpu"},
        "data": {
            "rows": str(rows),
            "num_eval_rows": 0,
            "max_prompt_tokens": PROMPT,
        },
        "rollout": {
            "prompts_per_step": 8,
            "group_size": 4,
            "max_new_tokens": COMPLETION,
        },
        "reward": {
            "recipe": {
                "rules": [{"name": "long", "kind": "length", "params": {"maximum": 9}}]
            }
        },
        "optim": {"num_steps": 3, "micro_batch_tokens": 1_024},
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
    }
    for name, values in case.parts.items():
        parts[name] = parts.get(name, {}) | values
    return parts


def measured(config: dict[str, Any], folder: Path, *, gives_back: bool = True) -> int:
    """Highest resident bytes of a run while it made its first two steps."""
    folder.mkdir()
    path = folder / "run.json"
    path.write_text(json.dumps(config))
    log = folder / "out" / "events.jsonl"
    rule = {"MALLOC_MMAP_THRESHOLD_": str(2**20)} if gives_back else {}
    child = start_trainer("run", path, "--out", folder / "out", env=rule)
    try:
        while not (log.exists() and _num_steps(log) >= 2):
            if child.poll() is not None:
                raise SystemExit(child.communicate()[0])
            time.sleep(0.01)  # the log is a file of another process
        status = Path(f"/proc/{child.pid}/status").read_text()
    finally:
        child.kill()
        child.communicate()
    (line,) = (each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1_024


def _num_steps(log: Path) -> int:
    return log.read_text().count('"type":"step_finished"')


def comparisons() -> Iterator[tuple[Case, MemoryEstimate, int, int]]:
    """Each case with its estimate, and what was measured beyond the program itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = folder / "rows.jsonl"
        rows.write_text(
            "".join(
                json.dumps({"prompt": f"{n:02d}".rjust(PROMPT, "0"), "answer": "1"})
                + "\n"
                for n in range(64)
            )
        )
        tiny, model = write_model(folder / "tiny"), write_llama(folder / "llama")
        for place, case in enumerate(CASES):
            # the program itself loads more for some cases than for others
            itself = measured(tree(tiny, rows, case), folder / f"tiny-{place}")
            config = tree(model, rows, case)
            needed = measured(config, folder / f"needed-{place}")
            kept = measured(config, folder / f"kept-{place}", gives_back=False)
            estimated = estimate(RunConfig.model_validate(config))
            yield case, estimated, needed - itself, kept - itself


def main() -> int:
    worst = 0.0
    say(heading("tests.bench.bench_memory"))
    sys.stdout.write(
        "| case | estimated MiB | needed MiB | off by | resident with glibc MiB |\n"
        "|---|--:|--:|--:|--:|\n"
    )
    for case, estimated, needed, kept in comparisons():
        off = estimated.total / needed - 1
        worst = max(worst, abs(off))
        sys.stdout.write(
            f"| {case.name} | {estimated.total / 2**20:,.0f} | {needed / 2**20:,.0f} "
            f"| {off:+.1%} | {kept / 2**20:,.0f} |\n"
        )
        sys.stdout.flush()
    return 0 if worst <= 0.2 else 1


if __name__ == "__main__":
    sys.exit(main())
