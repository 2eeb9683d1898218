"""Steps and sampling on a GPU, beside TRL's and `generate()`, with random weights.

    python -m tests.bench.bench_gpu [--model 0.5B] [--part generation] …

Models have the sizes of Qwen2.5 and are made here; every completion runs to the limit,
for both alike (tests/bench/random_models.py). Parts: "step", whole GRPO steps of Cohort
and of TRL's GRPOTrainer with transformers' generation, taking turns, each in a process
of its own; "generation", sampling alone beside `generate()`. Both are put beside the
least time that the machine's measured rates allow.

Needed are torch, transformers, pydantic and google-re2; for TRL's steps also trl,
datasets and accelerate. Without a GPU, `--device cpu --dtype float32 --model tiny` with
small sizes tries the command out.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.machine import heading, machine, say, table, tell, versions

MODELS = ("0.5B", "1.5B")
# The parts, and how much of the time each may take beside the others.
PARTS = {"step": 2, "generation": 1}
_NEEDED = {
    "torch": "torch",
    "transformers": "transformers",
    "pydantic": "pydantic",
    "re2": "google-re2",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all was measured, 2 when it cannot be measured here."""
    args = _parser().parse_args(arguments)
    refusal = _what_is_in_the_way(args)
    if refusal:
        tell(refusal)
        return 2
    # behind the check, since they need what it asks for
    from tests.bench.subprocesses import call_in_subprocess
    from tests.bench.theirs import what_is_missing

    without = what_is_missing() if "step" in args.part else ""
    if without:
        tell(without)
    host = call_in_subprocess(machine, args.device)
    say(heading("tests.bench.bench_gpu", host=host))
    results: dict[str, Any] = {
        "command": sys.argv,
        "machine": host,
        "versions": versions(),
        "parts": [],
    }
    for part in _parts(args, has_trl=not without):
        results["parts"].append(part)
        # after each one, so that nothing is lost if a later one fails
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1, default=str) + "\n")
    tell(f"All figures are in {args.out}.")
    return 0


def _what_is_in_the_way(args: argparse.Namespace) -> str:
    absent = [
        package
        for module, package in _NEEDED.items()
        if importlib.util.find_spec(module) is None
    ]
    if absent:
        return (
            f"This Python ({sys.executable}) has no {', '.join(absent)}. Install it "
            f"there: {sys.executable} -m pip install {' '.join(absent)}"
        )
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        return (
            "There is no CUDA device here. On a CPU the command can be tried with "
            "--device cpu --dtype float32 --model tiny --prompts 2 --group 2 --new 8."
        )
    return ""


def _parts(args: argparse.Namespace, *, has_trl: bool) -> Iterator[dict[str, Any]]:
    """Measure part after part, print each and give its figures.

    Each may take its share of the time that is left.
    """
    measure: dict[str, Callable[..., dict[str, Any]]] = {
        "step": _measure_steps,
        "generation": _measure_generation,
    }
    end = time.monotonic() + 60 * args.minutes
    todo = [(name, part) for name in args.model for part in args.part]
    while todo:
        begin = time.monotonic()
        share = PARTS[todo[0][1]] / sum(PARTS[part] for _, part in todo)
        deadline = begin + share * (end - begin)
        name, part = todo.pop(0)
        work = _work(args, name)
        say(f"\n**{name}, {part}** ({work.device}, {work.dtype})\n")
        found = measure[part](args, work, has_trl=has_trl, deadline=deadline)
        spent = time.monotonic() - begin
        tell(f"{name}, {part}: {spent:.0f} s in all")
        yield {"model": name, "part": part, "seconds": spent, **found}


def _work(args: argparse.Namespace, name: str) -> Any:
    from tests.bench.random_models import make_model
    from tests.bench.subprocesses import call_in_subprocess
    from tests.bench.work import Work

    tell(f"{name}: making the model, unless it is there")
    # in another process, whose memory on the GPU goes with it
    model = call_in_subprocess(
        make_model, name, args.folder.resolve(), dtype=args.dtype, device=args.device
    )
    return Work(
        model=model,
        rows=model.parent / "rows.jsonl",
        num_prompts=args.prompts,
        group_size=args.group,
        max_new_tokens=args.new,
        beta=args.beta,
        micro_batch_tokens=args.micro_batch_tokens,
        device=args.device,
        dtype=args.dtype,
    )


def _measure_steps(
    args: argparse.Namespace, work: Any, *, has_trl: bool, deadline: float
) -> dict[str, Any]:
    from tests.bench.comparison import (
        LIMIT_HEADER,
        STEP_HEADER,
        compare,
        limit_rows,
        rates_line,
        step_row,
    )

    found = compare(
        work,
        num_steps=args.steps,
        warmup=1,
        micro_batches=tuple(args.trl_micro_batches) if has_trl else (),
        deadline=deadline,
    )
    shown = {"table": [step_row(found)], "limits": limit_rows(found)}
    say(table(STEP_HEADER, shown["table"]))
    say(table(LIMIT_HEADER, shown["limits"]))
    say(rates_line(found.machine))
    return shown | asdict(found)


def _measure_generation(
    args: argparse.Namespace, work: Any, *, has_trl: bool, deadline: float
) -> dict[str, Any]:
    from tests.bench.bench_generation import HEADER, compare_generation, row
    from tests.bench.comparison import rates_line

    found = compare_generation(work, num_rounds=args.rounds, deadline=deadline)
    shown = {"table": [row(found)]}
    say(table(HEADER, shown["table"]))
    say(rates_line(found.machine))
    return shown | asdict(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", nargs="+", choices=[*MODELS, "tiny"], default=list(MODELS)
    )
    parser.add_argument("--part", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=3, help="of each, at most")
    parser.add_argument("--rounds", type=int, default=3, help="of sampling, at most")
    parser.add_argument(
        "--minutes",
        type=float,
        default=7.0,
        help="no step or round is begun that would end later, but for a first one",
    )
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument(
        "--trl-micro-batches",
        type=int,
        nargs="+",
        default=[32],
        help="of several the fastest is found first, which takes four steps of each",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument(
        "--folder", type=Path, default=Path(".cohort/bench/gpu"), help="for models"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(".cohort/bench/gpu.json"), help="all figures"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
