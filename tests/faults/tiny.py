"""A run small enough for several attempts in a test, with random weights."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.trainer.rewards.judge_server import Judging

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cohort" / "test-cache"
NUM_STEPS = 200
RECIPE = {
    "rules": [
        {
            "name": "digits",
            "kind": "regex",
            "weight": 1.0,
            "params": {"pattern": "[0-4][0-4]"},
        }
    ]
}


def config_tree(model: Path, *, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    return {
        "seed": 3,
        "model": {"path": str(model), "device": "cpu", "dtype": "float32"},
        "data": {"rows": "rows.jsonl", "num_eval_rows": 2},
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12},
        "reward": {"recipe": RECIPE},
        "optim": {"num_steps": num_steps, "learning_rate": 1e-3},
        "evaluation": {"every_steps": 20},
        "checkpoint": {"every_steps": 20},
        "distributed": {"num_threads": 1},
    }


def judged_by(judging: Judging, **params: Any) -> dict[str, Any]:
    """The part of a configuration in which a model is the judge."""
    settings = {"base_url": judging.url, "model": "m", "timeout_seconds": 0.5} | params
    rule = {"name": "judge", "kind": "llm_judge", "weight": 1.0, "params": settings}
    return {"recipe": {"rules": [rule]}, "max_error_share": 1.0}


def kept(name: str, make: Callable[[Path], object], *, depends_on: bytes) -> Path:
    """The folder that `make` filled, made once until what it depends on changes.

    Workers of one session wait for the first of them, which makes it.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    packages = " ".join(map(version, ("torch", "transformers", "tokenizers")))
    digest = sha256(Path(__file__).read_bytes() + packages.encode() + depends_on)
    path = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            for old in CACHE.glob(f"{name}-*"):
                shutil.rmtree(old)
            draft = CACHE / f"draft-{name}"
            shutil.rmtree(draft, ignore_errors=True)
            make(draft)
            draft.rename(path)
    return path


def trainer_code() -> bytes:
    """What the values of a training depend on."""
    paths = sorted((ROOT / "trainer").rglob("*.py"))
    return b"".join(str(path).encode() + path.read_bytes() for path in paths)


def save_model(folder: Path) -> None:
    """In a process of its own: torch has no place in that of the web's tests."""

    def make(draft: Path) -> None:
        subprocess.run([sys.executable, __file__, str(draft)], check=True, cwd=ROOT)

    made = kept("tiny-model", make, depends_on=b"")
    shutil.copytree(made, folder, dirs_exist_ok=True)


def undisturbed_log(
    tree: dict[str, Any], rows: str, *, name: str = "undisturbed-run"
) -> list[dict[str, Any]]:
    """The events of a run without faults, from the trainer alone.

    `name` is that of its folder, which is kept until trainer, settings or rows change.
    """

    def make(draft: Path) -> None:
        draft.mkdir()
        (draft / "rows.jsonl").write_text(rows)
        (draft / "run.json").write_text(json.dumps(tree))
        command = [sys.executable, "-m", "trainer", "run", str(draft / "run.json")]
        subprocess.run(
            [*command, "--out", str(draft / "out")],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        shutil.rmtree(draft / "out" / "checkpoints")

    settings = {name: part for name, part in tree.items() if name != "model"}
    depends_on = trainer_code() + json.dumps([settings, rows]).encode()
    folder = kept(name, make, depends_on=depends_on)
    return read_log(folder / "out" / "events.jsonl")


def _save_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    characters = "0123456789+= abcdef"
    vocabulary = {token: n for n, token in enumerate(["<pad>", "<eos>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)


# What ingest adds up over a run's steps, and from what.
TOTALS = {
    "total/tokens": "sampling/num_tokens",
    "total/completions": "sampling/num_completions",
}


Series = dict[int, dict[str, float | None]]
# Text, reward and advantage of each completion, by step and prompt.
Groups = dict[tuple[int, int], list[tuple[str, float | None, float | None]]]


@dataclass(frozen=True, kw_only=True)
class History:
    series: Series
    groups: Groups


def groups(events: list[dict[str, Any]]) -> Groups:
    return {
        (event["step"], event["prompt_index"]): [
            (one["text"], one["reward"], one["advantage"])
            for one in event["completions"]
        ]
        for event in events
        if event["type"] == "group_scored"
    }


def series(events: list[dict[str, Any]]) -> Series:
    """Metrics by step, with their totals, without those that tell the time."""
    found: Series = {}
    totals = dict.fromkeys(TOTALS, 0.0)
    for event in events:
        if event["type"] == "step_finished":
            metrics = event["metrics"]
            totals = {t: totals[t] + metrics[of] for t, of in TOTALS.items()}
            found[event["step"]] = untimed(metrics) | totals
    return found


def untimed(metrics: dict[str, float | None]) -> dict[str, float | None]:
    """Without times, and without metrics that a step has no value of.

    The log leaves such a metric out, the database has a null.
    """
    return {
        name: value
        for name, value in metrics.items()
        if value is not None
        and not name.startswith("time/")
        and name != "tokens_per_second"
    }


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


if __name__ == "__main__":
    _save_model(Path(sys.argv[1]))
