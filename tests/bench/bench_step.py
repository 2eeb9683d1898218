"""A whole GRPO step beside TRL's: the same model, prompts, lengths and machine.

    python -m tests.bench.bench_step --model FOLDER --prompts 16 --group 8

Both train in one process and take turns, step by step, so that whatever else the
machine does falls on both. TRL runs at its best: without gradient checkpointing, and
with the number of micro-batches that was fastest before the comparison. What is
compared is completion tokens a second over a whole step: sampling, scoring, log-probs
and update.

    python -m tests.bench.bench_step --memory ours|trl …

runs one of them alone for three steps and prints the process's highest resident memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# As the trainer sets them; TRL is as fast with them as without on idle cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

BETA = 0.04
RATE = 1e-6  # both stay near the start, so that lengths agree


@dataclass(frozen=True, kw_only=True)
class Work:
    """What both do in a step."""

    model: Path
    rows: Path
    num_prompts: int
    group_size: int
    max_new_tokens: int
    beta: float
    micro_batch_tokens: int

    @property
    def completions(self) -> int:
        return self.num_prompts * self.group_size


@dataclass
class Steps:
    """Seconds and completion tokens of each step."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [t / s for t, s in zip(self.tokens, self.seconds, strict=True)]


# --- Cohort


def our_steps(work: Work, *, num_steps: int, folder: Path) -> Iterator[Steps]:
    """A generator that takes one step each time it is asked."""
    from trainer.config import RunConfig
    from trainer.log import EventLog
    from trainer.loop import run_step
    from trainer.preparation import Place, prepare

    config = RunConfig.model_validate(
        {
            "model": {"path": str(work.model), "device": "cpu"},
            "data": {
                "rows": str(work.rows),
                "chat_template": "none",
                "max_prompt_tokens": 256,
            },
            "rollout": {
                "prompts_per_step": work.num_prompts,
                "group_size": work.group_size,
                "max_new_tokens": work.max_new_tokens,
            },
            "reward": {
                "recipe": {
                    "rules": [
                        {
                            "name": "length",
                            "kind": "length",
                            "params": {"maximum": work.max_new_tokens},
                        }
                    ]
                }
            },
            "loss": {"kl_coef": work.beta},
            "optim": {
                "num_steps": num_steps,
                "learning_rate": RATE,
                "micro_batch_tokens": work.micro_batch_tokens,
            },
            "evaluation": {"every_steps": 0},
            "checkpoint": {"every_steps": 0},
        }
    )
    out = folder / "ours"
    out.mkdir()
    log = EventLog(out / "events.jsonl", epoch=1)
    training = prepare(
        config,
        Place(
            config=folder / "run.json",
            out=out,
            checkpoints=out / "checkpoints",
            resume_from=None,
            epoch=1,
        ),
        log,
    )
    (stage,) = config.stages
    training.enter(stage, saved=None)
    found = Steps()
    for _ in range(num_steps - 1):  # the last one would write a checkpoint
        begin = time.perf_counter()
        run_step(training, should_stop=lambda: False)
        found.seconds.append(time.perf_counter() - begin)
        event = _last_step(out / "events.jsonl")
        found.tokens.append(int(event["metrics"]["sampling/num_tokens"]))
        found.phases.append(
            {
                name.removeprefix("time/"): value
                for name, value in event["metrics"].items()
                if name.startswith("time/") and value is not None
            }
        )
        yield found


def _last_step(path: Path) -> dict[str, Any]:
    for line in reversed(path.read_text().splitlines()):
        event: dict[str, Any] = json.loads(line)
        if event["type"] == "step_finished":
            return event
    raise AssertionError("no step in the log")


# --- TRL


def run_trl(
    work: Work,
    *,
    num_steps: int,
    micro_batches: int,
    folder: Path,
    between: Callable[[], None] = lambda: None,
) -> Steps:
    """TRL's own trainer; `between` is called after each of its steps."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from transformers.utils import logging as hf_logging
    from trl import GRPOConfig, GRPOTrainer

    hf_logging.set_verbosity_error()
    rows = [json.loads(line) for line in work.rows.read_text().splitlines()]
    found = Steps()
    counted: list[int] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(len(ids) for ids in completion_ids))
        return [len(ids) % 7 / 10 for ids in completion_ids]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            counted.clear()
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found.seconds.append(time.perf_counter() - self.begin)
            found.tokens.append(sum(counted))
            between()

    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    trainer = GRPOTrainer(
        model=str(work.model),
        processing_class=tokenizer,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / f"trl-{micro_batches}"),
            per_device_train_batch_size=work.completions // micro_batches,
            gradient_accumulation_steps=micro_batches,
            num_generations=work.group_size,
            max_completion_length=work.max_new_tokens,
            max_steps=num_steps,
            learning_rate=RATE,
            beta=work.beta,
            gradient_checkpointing=False,
            bf16=False,
            model_init_kwargs={"dtype": "float32"},
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            log_completions=False,
        ),
    )
    trainer.train()
    return found


def best_micro_batches(work: Work, folder: Path) -> tuple[int, dict[int, float]]:
    """The number of micro-batches that TRL is fastest with, and all rates."""
    rates = {}
    for count in (1, 2, 4, 8):
        steps = run_trl(work, num_steps=4, micro_batches=count, folder=folder)
        rates[count] = statistics.median(steps.rates[1:])
    return max(rates, key=lambda count: rates[count]), rates


# --- the comparison


def compare(work: Work, *, num_steps: int, warmup: int = 2) -> str:
    """One row of the table: medians with their ranges."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        best, _ = best_micro_batches(work, folder)
        total = num_steps + warmup
        turns = our_steps(work, num_steps=total + 1, folder=folder)
        ours = Steps()

        def turn() -> None:
            nonlocal ours
            ours = next(turns)

        theirs = run_trl(
            work, num_steps=total, micro_batches=best, folder=folder, between=turn
        )
    rates, others = ours.rates[warmup:], theirs.rates[warmup:]
    ratios = [a / b for a, b in zip(rates, others, strict=True)]
    phases = {
        name: statistics.median(each[name] for each in ours.phases[warmup:])
        for name in ("generate", "score", "logprobs", "update", "sync")
    }
    shares = ", ".join(f"{name} {value:.2f}" for name, value in phases.items() if value)
    return (
        f"| {work.num_prompts} × {work.group_size}, {work.max_new_tokens} new, "
        f"β {work.beta:g} | {spread(others, '.0f')} ({best} micro-batches) "
        f"| {spread(rates, '.0f')} | {spread(ratios, '.2f')} | {shares} |"
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def spread(values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}}–{high:{form}})"


def write_rows(model: Path, folder: Path, *, prompt_words: int) -> Path:
    """The starter's own rows, or for another model short arithmetic questions."""
    own = model.parent / "rows.jsonl"
    if own.is_file():
        return own
    rng, path = random.Random(0), folder / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(500):
            terms = " + ".join(str(rng.randint(1, 99)) for _ in range(prompt_words))
            question = f"Question: what is {terms}? Think, then answer.\nAnswer:"
            file.write(json.dumps({"prompt": question, "answer": "0"}) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--beta", type=float, nargs="*", default=[0.0, BETA])
    parser.add_argument("--micro-batch-tokens", type=int, default=4_096)
    parser.add_argument("--memory", choices=["ours", "trl"])
    parser.add_argument("--micro-batches", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_rows(args.model, folder, prompt_words=6)
        for beta in args.beta:
            work = Work(
                model=args.model,
                rows=rows,
                num_prompts=args.prompts,
                group_size=args.group,
                max_new_tokens=args.new,
                beta=beta,
                micro_batch_tokens=args.micro_batch_tokens,
            )
            if args.memory is None:
                say(compare(work, num_steps=args.steps))
                continue
            if args.memory == "ours":
                turns = our_steps(work, num_steps=4, folder=folder)
                for _ in range(3):
                    next(turns)
            else:
                run_trl(
                    work,
                    num_steps=3,
                    micro_batches=args.micro_batches,
                    folder=folder,
                )
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            say(f"{args.memory}, β {beta:g}: {peak} MiB")


if __name__ == "__main__":
    main()
