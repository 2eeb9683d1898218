"""Whole runs on a GPU: see check.py."""

import json
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.environment import child_environment
from tests.gpu.setup import Failed, Setup, peak, random_policy, reset_peak
from tests.trainer.tiny import (
    ROOT,
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from trainer.sizes.memory import CPU_TOKENS

LARGEST_GAP = 0.03  # nats a token, of sampling in bfloat16
LARGEST_GAP_AHEAD = 0.06  # of one step off, whose few first tokens have been further
MEMORY_BYTES = 1.25 * 2**30  # for the stage that runs out of it


def runs(setup: Setup) -> None:
    """Whole runs of every kind, beyond the 64th token."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3}
    sizes = {} if setup.tiny else sizes
    model = write_model(setup.folder / "model", **sizes)
    other = write_model(setup.folder / "teacher", seed=1, **sizes)
    rows = write_rows(setup.folder / "rows.jsonl", 48)
    bf16 = {"dtype": "bfloat16" if setup.device == "cuda" else "float32"}
    kl = {"loss": {"kl_coef": 0.05}}
    variants: dict[str, dict[str, dict[str, Any]]] = {
        "plain": {"model": {"dtype": "float32"}},
        "bf16, KL": {"model": bf16, **kl},
        "LoRA, KL": {"model": {"lora_rank": 4, **bf16}, **kl},
        "checkpointing": {"model": {"gradient_checkpointing": True, **bf16}},
        "2 minibatches × 2": {"optim": {"minibatches": 2, "updates_per_batch": 2}},
        "one step off": {
            "rollout": {"one_step_off": True},
            "loss": {"importance_correction": "token_truncate"},
        },
        "refill": {"rollout": {"dynamic_sampling": "refill", "max_refills": 2}},
        "distilled": {
            "advantage": {"weight": 0.0},
            "loss": {"kl_coef": 1.0, "kl_estimator": "k3", "kl_ratio": True},
            "reference": {"kind": "frozen", "model": str(other)},
        },
        "curriculum": {"curriculum": {"kind": "pools"}},
        "decoding plain": {"rollout": {"decoding": "plain"}},
        "resumed": {"model": bf16},
    }
    if setup.tiny:
        variants = {name: variants[name] for name in ("distilled", "resumed")}

    def run(name: str) -> str:
        tree = run_tree(setup, model, rows, variants[name])
        folder = setup.folder / re.sub(r"\W+", "-", name)
        out = folder / "out"
        config = write_config(folder, tree)
        train(config, "--out", out)
        if name == "resumed":
            (saved,) = (out / "checkpoints").glob("step-000002*")
            out = folder / "later"
            train(config, "--out", out, "--resume-from", saved)
        largest = LARGEST_GAP_AHEAD if name == "one step off" else LARGEST_GAP
        return check_run(read_events(out / "events.jsonl"), largest=largest)

    with ThreadPoolExecutor(4) as pool:
        tried = {name: pool.submit(run, name) for name in variants}
    failed = {
        name: str(each.exception()) for name, each in tried.items() if each.exception()
    }
    for name, each in tried.items():
        setup.figures[name] = "failed" if name in failed else each.result()
    if failed:
        name, reason = next(iter(failed.items()))
        raise Failed(f"{len(failed)} of {len(tried)} failed; {name}: {reason}")


def auto(setup: Setup) -> None:
    """A run without any setting of memory chooses what fits, and finishes."""
    model, out = setup.folder / "auto-model", setup.folder / "auto"
    policy = random_policy(setup)
    policy.save(model)
    del policy
    tree = run_tree(
        setup,
        model,
        write_rows(setup.folder / "rows.jsonl", 48),
        {
            "rollout": {
                "prompts_per_step": setup.size(16, 2),
                "group_size": 8,
                "max_new_tokens": setup.size(512, 24),
            },
            "optim": {"num_steps": 2, "micro_batch_tokens": "auto"},
            "evaluation": {"every_steps": 0},
        },
    )
    if setup.device == "cuda":
        torch.cuda.empty_cache()
    reset_peak(setup)
    done = run_trainer("run", write_config(out, tree), "--out", out / "out")
    events = read_events(out / "out" / "events.jsonl")
    if done.returncode != 0:
        for event in only(events, "run_failed"):
            sys.stderr.write(event["details"])
        raise Failed(f"exit code {done.returncode}: {done.stderr[-300:]}")
    saved = max((out / "out" / "checkpoints").glob("step-*"))
    memory = json.loads((saved / "controllers.json").read_text())["memory"]
    chosen = memory.get("chosen", {"tokens": CPU_TOKENS, "checkpointing": False})
    setup.figures.update({**chosen, **peak(setup, "")})
    setup.figures["halved"] = memory["limit"] is not None
    if ("chosen" in memory) != (setup.device == "cuda"):
        raise Failed("sizes are chosen on a GPU, and only there")
    if memory["limit"] is not None:
        raise Failed("what was chosen did not fit")


def out_of_memory(setup: Setup) -> None:
    """A run that has too little memory halves what it does at once, and finishes."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(MEMORY_BYTES / total)
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    more = {"max_position_embeddings": 512, "num_attention_heads": 8}
    model = write_model(setup.folder / "large", **sizes, **more)
    tree = run_tree(
        setup,
        model,
        write_rows(setup.folder / "rows.jsonl", 48),
        {
            "rollout": {
                "prompts_per_step": 32,
                "group_size": 64,
                "max_new_tokens": 320,
                "max_batch_rows": 4096,
            },
            "optim": {"micro_batch_tokens": 131_072, "num_steps": 2},
            "evaluation": {"every_steps": 0},
        },
    )
    out = setup.folder / "out-of-memory"
    done = run_trainer("run", write_config(out, tree), "--out", out / "out")
    figures = setup.figures
    if done.returncode != 0:
        for event in only(read_events(out / "out" / "events.jsonl"), "run_failed"):
            sys.stderr.write(event["details"])
        raise Failed(f"exit code {done.returncode}: {done.stderr[-300:]}")
    warned = only(read_events(out / "out" / "events.jsonl"), "warned")
    for what, name in (("completions", "rows"), ("tokens", "micro-batch tokens")):
        found = [
            each["value"]
            for each in warned
            if each["code"] == "out_of_memory" and f"{what} " in each["message"]
        ]
        figures[name] = " → ".join(f"{value:.0f}" for value in found) or "never"
    # sampling takes as many rows as fit, so it need not run out
    if figures["micro-batch tokens"] == "never":
        raise Failed("memory was enough, so nothing was shown")


def learning(setup: Setup) -> None:
    """The starter's reward rises on this device; its steps alone on the machine."""
    num_steps = setup.size(40, 2)
    bf16 = "bfloat16" if setup.device == "cuda" else "float32"
    recipe = json.loads((setup.starter / "recipe.json").read_text())
    tree = {
        "model": {
            "path": str(setup.starter / "model"),
            "device": setup.device,
            "dtype": bf16,
        },
        "data": {
            "rows": str(setup.starter / "rows.jsonl"),
            "num_eval_rows": 64,
            "chat_template": "none",
            "max_prompt_tokens": 32,
        },
        "rollout": {
            "prompts_per_step": setup.size(32, 4),
            "group_size": 8,
            "max_new_tokens": 96,
        },
        "reward": {"recipe": recipe},
        "optim": {
            "num_steps": num_steps,
            "learning_rate": 3e-4,
            "micro_batch_tokens": 32_768,
        },
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
    }
    folder = setup.folder / "learning"
    train(write_config(folder, tree), "--out", folder / "out")
    events = read_events(folder / "out" / "events.jsonl")
    steps = [event["metrics"] for event in only(events, "step_finished")]
    rewards = [step["reward/mean"] for step in steps]
    first, last = statistics.mean(rewards[:5]), statistics.mean(rewards[-5:])
    figures = setup.figures
    figures["reward"] = f"{first:.3f} → {last:.3f}"
    for phase in ("step", "generate", "score", "update", "sync"):
        values = [each[f"time/{phase}"] or 0.0 for each in steps[1:]]
        figures[f"{phase} s"] = round(statistics.median(values), 3)
    figures["mismatch"] = f"{statistics.mean(s['mismatch/mean'] for s in steps):.2g}"
    if not setup.tiny and not last - first >= 0.05:
        raise Failed("the reward did not rise by 0.05")


def run_tree(
    setup: Setup, model: Path, rows: Path, changes: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    tree = config_tree(
        model,
        rows,
        rollout={
            "prompts_per_step": setup.size(16, 2),
            "group_size": 8,
            "max_new_tokens": 96,
        },
        optim={"num_steps": 4, "learning_rate": 1e-4, "micro_batch_tokens": 8192},
        checkpoint={"every_steps": 2},
        evaluation={"every_steps": 4},
        distributed={"num_threads": 2},
    )
    for part in (*changes, "model"):
        tree[part] = tree.get(part, {}) | changes.get(part, {})
    tree["model"]["device"] = setup.device
    return tree


def train(config: Path, *options: object) -> None:
    command = [sys.executable, "-m", "trainer", "run", str(config), *map(str, options)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\n")
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")


def check_run(events: list[dict[str, Any]], *, largest: float) -> str:
    """Milliseconds a step; RuntimeError where the run was not as it has to be."""
    steps = [event["metrics"] for event in only(events, "step_finished")]
    fallen = [e for e in only(events, "warned") if e["code"] == "engine_fallback"]
    if fallen:
        raise RuntimeError(fallen[0]["message"])
    first = steps[0].get("mismatch/mean")
    if first is not None and not first <= largest:
        raise RuntimeError(f"log-probs of sampling are {first:.3g} nats off")
    return f"{1000 * statistics.median(step['time/step'] for step in steps):.0f} ms"
