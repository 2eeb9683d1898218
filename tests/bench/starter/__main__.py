"""Makes a starter: its model, rows, recipe and run.

`python -m tests.bench.starter FOLDER [--task countdown] [--seed 0] [--steps 650]`, some
three minutes on two cores; of the task guess one. `trainer/starter/countdown` and
`trainer/starter/guess` are what it wrote with its defaults.
"""

import argparse
import hashlib
import json
import platform
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from tests.bench.machine import say
from tests.bench.starter.countdown import (
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
from tests.bench.starter.guess import all_games, teach_game
from trainer.config import load_config
from trainer.seeding import derive, seed_torch

STARTERS = Path(__file__).parents[3] / "trainer" / "starter"
SHIPPED = STARTERS / "countdown"
NUM_STEPS = {"countdown": Teaching().num_steps, "guess": 300}
# The rest of the problems become the rows, so the run meets none it was warmed up on.
_WARMUP_SHARE = 1 / 3
# A row's demonstration, for supervised steps, fits into the run's 96 tokens.
_MAX_MISSES = 4
_NUM_GAMES = 1_152  # 128 of them held out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=list(NUM_STEPS), default="countdown")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args(arguments)
    teaching = Teaching(num_steps=args.steps or NUM_STEPS[args.task])
    make_starter(args.folder, task=args.task, seed=args.seed, teaching=teaching)


def make_starter(
    folder: Path, *, task: str = "countdown", seed: int, teaching: Teaching
) -> None:
    """Write model/, rows.jsonl, recipe.json, run.toml and starter.json."""
    folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.disable_progress_bar()
    seed_torch(seed)
    chance = random.Random(derive(seed, "starter"))
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            say(f"step {step} of {teaching.num_steps}: loss {loss:.3f}")

    problems: list[Any] = all_problems() if task == "countdown" else all_games()
    warmup, rest = _split(problems, chance)
    losses = (teach if task == "countdown" else teach_game)(
        model,
        tokenizer,
        warmup,
        teaching=teaching,
        seed=derive(seed, "teach"),
        report=report,
    )
    model.save_pretrained(folder / "model")
    _save_tokenizer(tokenizer, folder / "model")
    if task == "countdown":
        _write_rows(folder / "rows.jsonl", rest, seed=seed, chance=chance)
    else:
        lines = (json.dumps(game.row) + "\n" for game in rest[:_NUM_GAMES])
        (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    _write_run(folder, task)
    facts = {
        "seed": seed,
        "steps": teaching.num_steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "sha256": dict(_hashes(folder)),
    }
    text = json.dumps(facts, indent=2)
    (folder / "starter.json").write_text(f"{text}\n", encoding="utf-8")


def _split(problems: list[Any], chance: random.Random) -> tuple[list[Any], list[Any]]:
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


def _write_run(folder: Path, task: str) -> None:
    if folder.resolve() != STARTERS / task:
        shutil.copy(STARTERS / task / "run.toml", folder)
    recipe = load_config(folder / "run.toml").reward.recipe
    (folder / "recipe.json").write_text(
        recipe.model_dump_json(indent=2) + "\n", encoding="utf-8"
    )


def _hashes(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "starter.json":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield str(path.relative_to(folder)), digest


if __name__ == "__main__":
    main()
