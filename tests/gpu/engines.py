"""vLLM as a run's engine, where it is installed: see check.py."""

import importlib.util
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from tests.bench.random_models import make_tokenizer
from tests.environment import child_environment
from tests.gpu.runs import LARGEST_GAP, LARGEST_GAP_AHEAD, run_tree, train
from tests.gpu.setup import Failed, Setup, Skip
from tests.trainer.architectures import write_architecture
from tests.trainer.tiny import ROOT, only, read_events, write_config, write_rows
from tests.trainer.tiny_architectures import ARCHITECTURES
from tests.trainer.vllm_models import write_wide_model

CACHE_GIB = 4.0
AT_ONCE = 3  # runs, each with a vLLM of its own
WIDE = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}


def vllm(setup: Setup) -> None:
    """Runs that vLLM samples: log-probs of each step, with adapters, asleep meanwhile,
    one step off and by a server; tokens/s beside the own decoder's."""
    if importlib.util.find_spec("vllm") is None:
        raise Skip("vLLM is not installed")
    model, rows = _model(setup), write_rows(setup.folder / "rows.jsonl", 48)
    engine = {
        "engine": "vllm",
        "cache_gib": CACHE_GIB if setup.device == "cuda" else 0.125,
    }
    ahead = {"one_step_off": True}
    corrected = {"loss": {"importance_correction": "token_truncate"}}
    variants: dict[str, dict[str, dict[str, Any]]] = {
        "vLLM": {"rollout": engine},
        "LoRA": {"rollout": engine, "model": {"lora_rank": 8}},
        "asleep": {"rollout": engine | {"sleep": True}},
        "one step off": {"rollout": engine | ahead, **corrected},
        "own decoder": {"rollout": {"engine": "transformers"}},
    }
    if setup.device == "cpu":
        del variants["asleep"]  # for a GPU's memory
    if setup.tiny:
        variants = {name: variants[name] for name in ("vLLM", "own decoder")}

    def run(name: str) -> str:
        return _run(setup, model, rows, name, variants[name])

    failed = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {name: pool.submit(run, name) for name in variants}
    tried["a server"] = ThreadPoolExecutor(1).submit(_served, setup, model, rows)
    tried["SmolLM3"] = ThreadPoolExecutor(1).submit(_borrowed, setup, rows)
    for name, each in tried.items():
        if error := each.exception():
            failed[name] = str(error)
        setup.figures[name] = "failed" if name in failed else each.result()
    if failed:
        name, reason = next(iter(failed.items()))
        raise Failed(f"{len(failed)} of {len(tried)} failed; {name}: {reason}")


def _model(setup: Setup) -> Path:
    """Random weights in the sizes of Qwen3-0.6B; in the small form a few layers."""
    folder = setup.folder / "vllm-model"
    if setup.tiny:
        return write_wide_model(folder)
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1_024,
        intermediate_size=3_072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4_096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=151_935,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(setup.device):
        model = AutoModelForCausalLM.from_config(config, dtype=setup.dtype)
    model.save_pretrained(folder)
    make_tokenizer(config.vocab_size - 1).save_pretrained(folder)
    return folder


def _run(
    setup: Setup,
    model: Path,
    rows: Path,
    name: str,
    changes: dict[str, dict[str, Any]],
) -> str:
    """Seconds of a step's parts; RuntimeError where log-probs are not the policy's."""
    folder = setup.folder / re.sub(r"\W+", "-", f"vllm-{name}")
    tree = run_tree(setup, model, rows, changes)
    tree["model"]["dtype"] = str(setup.dtype).removeprefix("torch.")
    tree["rollout"]["max_new_tokens"] = setup.size(256, 24)
    # other weights are sent after each step; one step off is to be near nevertheless
    tree["optim"]["learning_rate"] = 1e-6 if name == "one step off" else 1e-5
    tree["evaluation"]["every_steps"] = 0
    tree["logging"] = {"tokens_every_steps": 2}
    begun = time.monotonic()
    train(write_config(folder, tree), "--out", folder / "out")
    whole = time.monotonic() - begun
    events = read_events(folder / "out" / "events.jsonl")
    fallen = [e for e in only(events, "warned") if e["code"] == "engine_fallback"]
    if fallen:
        raise RuntimeError(fallen[0]["message"])
    steps = [event["metrics"] for event in only(events, "step_finished")]
    gaps = [step["mismatch/mean"] for step in steps]
    # one step off, all but the first batch are of the weights before the last update
    largest = LARGEST_GAP_AHEAD if name == "one step off" else LARGEST_GAP
    if not max(gaps) <= largest:
        raise RuntimeError(f"log-probs of sampling are {max(gaps):.3g} nats off")
    first = first_tokens_gap(events)
    if not first <= 3 * largest:  # a mean of few tokens
        raise RuntimeError(f"log-probs of first tokens are {first:.3g} nats off")
    (started,) = only(events, "run_started")

    def median(part: str) -> float:
        return statistics.median(step[f"time/{part}"] or 0.0 for step in steps[1:])

    tokens = statistics.median(
        step["completion/mean_length"] * 8 * setup.size(16, 2) for step in steps[1:]
    )
    start = whole - sum(step["time/step"] for step in steps)
    return (
        f"{started['engine']}: {tokens / max(1e-9, median('generate')):.0f} tokens/s, "
        f"sync {median('sync'):.2f} s, start {start:.0f} s, off {gaps[0]:.2g} to "
        f"{gaps[-1]:.2g}, first tokens {first:.2g}"
    )


def first_tokens_gap(events: list[dict[str, Any]]) -> float:
    """Mean of some groups of the first two steps, the first ones that an engine, its
    thread or a server samples."""
    pairs = [
        (completion["logprob"][0], completion["sampling_logprob"][0])
        for event in only(events, "tokens_measured")
        if event["step"] <= 2
        for completion in event["completions"]
    ]
    return statistics.mean(abs(one - other) for one, other in pairs)


def _served(setup: Setup, model: Path, rows: Path) -> str:
    """The first tokens of a server's first batch are in a run's first step."""
    token = setup.folder / "rollout-token"
    with _server(setup, model, token) as url:
        rollout = {"engine": "vllm_server", "url": url, "token_file": str(token)}
        return _run(setup, model, rows, "a server", {"rollout": rollout})


@contextmanager
def _server(setup: Setup, model: Path, token: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "trainer", "rollout-server", "--model", model]
    options = ["--token-file", token, "--port", 0]
    options += ["--max-length", setup.size(1024, 256)]
    options += ["--cache-gib", CACHE_GIB if setup.device == "cuda" else 0.125]
    options += ["--dtype", str(setup.dtype).removeprefix("torch.")]
    process = subprocess.Popen(
        [str(each) for each in (*command, *options)],
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                return
        raise RuntimeError(f"the server ended: {''.join(said)[-300:]}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _borrowed(setup: Setup, rows: Path) -> str:
    """SmolLM3, of which vLLM takes transformers' own class: refused, or sampled from
    where that is not the class that trains."""
    smollm3 = ARCHITECTURES["SmolLM3"]
    folder = setup.folder / "smollm3"
    folder.mkdir()
    write_architecture(replace(smollm3, settings={**smollm3.settings, **WIDE}), folder)
    rollout = {"engine": "vllm", "cache_gib": 0.125}
    try:
        return _run(setup, folder, rows, "SmolLM3", {"rollout": rollout})
    except RuntimeError:
        out = setup.folder / "vllm-SmolLM3" / "out"
        (ended,) = only(read_events(out / "events.jsonl"), "run_failed")
        if "SmolLM3" not in ended["error"]:
            raise
        return f"refused: {ended['error']}"
