"""`python -m trainer warmup`: make the starter's model, rows, recipe and run."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import string
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from trainer.config import load_config
from trainer.console import Progress
from trainer.seeding import derive, seed_torch
from trainer.starter.countdown import (
    Problem,
    Teaching,
    all_problems,
    build_model,
    build_tokenizer,
    plans_for,
    prompt_for,
    solving_text,
    teach,
)

# The rest of the problems become the rows, so the run meets none it was warmed up on.
_WARMUP_SHARE = 1 / 3
# A row's demonstration, for supervised steps, fits into the run's 96 tokens.
_MAX_MISSES = 4
COMPLETE = "starter.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--steps",
        type=int,
        default=Teaching().num_steps,
        help="warm-up steps (default: %(default)s); fewer make a weaker model",
    )
    parser.add_argument(
        "--json-progress", action="store_true", help="print progress as lines of JSON"
    )


def main(args: argparse.Namespace) -> int:
    """0 when the folder is complete, 2 when it cannot be used."""
    try:
        _check(args)
        make_starter(
            args.out,
            seed=args.seed,
            teaching=Teaching(num_steps=args.steps),
            progress=Progress(as_json=args.json_progress),
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.steps < 1 or args.seed < 0:
        raise ValueError(
            f"--steps must be at least 1 and --seed at least 0; got {args.steps} and "
            f"{args.seed}."
        )
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ValueError(
            f"{args.out} is not an empty folder. Name a new one, or delete it first."
        )


def make_starter(
    folder: Path, *, seed: int, teaching: Teaching, progress: Progress
) -> None:
    """Write model/, rows.jsonl, recipe.json, run.toml and, last, starter.json."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.disable_progress_bar()
    seed_torch(seed)
    chance = random.Random(derive(seed, "starter"))
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    warmup, rest = _split(all_problems(), chance)

    losses = teach(
        model,
        tokenizer,
        warmup,
        teaching=teaching,
        seed=derive(seed, "teach"),
        report=lambda step, _: progress.show("Warm-up", step, teaching.num_steps),
    )
    progress.show("Saving", 0, 1)
    model.save_pretrained(folder / "model")
    _save_tokenizer(tokenizer, folder / "model")
    _write_rows(folder / "rows.jsonl", rest, seed=seed, chance=chance)
    _write_run(folder, seed=seed)
    facts = {
        "seed": seed,
        "steps": teaching.num_steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "seconds": round(time.monotonic() - started, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "sha256": dict(_hashes(folder)),
    }
    _complete(folder / COMPLETE, facts)
    progress.show("Saving", 1, 1)


def _split(
    problems: list[Problem], chance: random.Random
) -> tuple[list[Problem], list[Problem]]:
    """Problems of the warm-up, and the rest."""
    shuffled = chance.sample(problems, len(problems))
    end = round(len(problems) * _WARMUP_SHARE)
    return shuffled[:end], shuffled[end:]


def _save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    tokenizer.save_pretrained(str(folder))
    text = "3 5 7 > 1<think>3+5=8,8+7=15!</think>\n<answer>3+5-7</answer>"
    loaded = PreTrainedTokenizerFast.from_pretrained(str(folder))  # nosec B615 # a folder of ours
    assert loaded.decode(loaded.encode(text)) == text


def _write_rows(
    path: Path, problems: Sequence[Problem], *, seed: int, chance: random.Random
) -> None:
    teacher = random.Random(derive(seed, "demonstrations"))
    with path.open("w", encoding="utf-8") as file:
        for problem in problems:
            shown = solving_text(problem, teacher, max_misses=_MAX_MISSES)
            row = _row(problem, chance)
            row["columns"]["completion"] = shown
            file.write(json.dumps(row) + "\n")


def _row(problem: Problem, chance: random.Random) -> dict[str, Any]:
    solutions = [
        plan.expression
        for plan in plans_for(problem.numbers)
        if plan.value == problem.target
    ]
    return {
        "prompt": prompt_for(problem, chance),
        "answer": solutions[0],
        "columns": {"numbers": list(problem.numbers), "target": problem.target},
    }


def _write_run(folder: Path, *, seed: int) -> None:
    template = Path(__file__).with_name("run.toml").read_text(encoding="utf-8")
    text = string.Template(template).substitute(
        # Absolute: a run may be started from any folder.
        seed=seed,
        model=json.dumps(str((folder / "model").resolve())),
    )
    (folder / "run.toml").write_text(text, encoding="utf-8")
    recipe = load_config(folder / "run.toml").reward.recipe
    (folder / "recipe.json").write_text(
        recipe.model_dump_json(indent=2) + "\n", encoding="utf-8"
    )


def _hashes(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield str(path.relative_to(folder)), digest


def _complete(path: Path, facts: dict[str, Any]) -> None:
    """Written last and at once: who sees it sees a whole folder."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
