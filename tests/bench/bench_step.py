"""A whole GRPO step beside TRL's: the same model, prompts, lengths and machine.

    python -m tests.bench.bench_step --model FOLDER --prompts 16 --group 8

Each trains in a process of its own, and they take turns, step by step, so that whatever
else the machine does falls on both. TRL runs at its best: without gradient
checkpointing, and with the number of micro-batches that was fastest before the
comparison. What is compared is completion tokens a second over a whole step (sampling,
scoring, log-probs and update), and the most memory that each process held. A second
table puts Cohort's parts of a step beside the least time that they can take here.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.comparison import (
    LIMIT_HEADER,
    STEP_HEADER,
    compare,
    limit_rows,
    rates_line,
    step_row,
)
from tests.bench.machine import heading, say, table, tell
from tests.bench.theirs import what_is_missing
from tests.bench.work import BETA, Work, write_rows


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        rows = write_rows(args.model, Path(name))
        _steps(args, [_work(args, rows, beta=beta) for beta in args.beta])


def _steps(args: argparse.Namespace, works: Sequence[Work]) -> None:
    without = what_is_missing()
    if without:
        tell(without)
    counts = () if without else tuple(args.micro_batches)
    found = [
        compare(work, num_steps=args.steps, micro_batches=counts) for work in works
    ]
    say(heading("tests.bench.bench_step"))
    say(table(STEP_HEADER, [step_row(each) for each in found]))
    say(table(LIMIT_HEADER, [line for each in found for line in limit_rows(each)]))
    say(rates_line(found[0].machine) + "\n")


def _work(args: argparse.Namespace, rows: Path, *, beta: float) -> Work:
    return Work(
        model=args.model,
        rows=rows,
        num_prompts=args.prompts,
        group_size=args.group,
        max_new_tokens=args.new,
        beta=beta,
        micro_batch_tokens=args.micro_batch_tokens,
        device=args.device,
        dtype=args.dtype,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--beta", type=float, nargs="*", default=[0.0, BETA])
    parser.add_argument("--micro-batch-tokens", type=int, default=8_192)
    parser.add_argument(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8],
        help="of TRL, of which the fastest is taken",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    return parser


if __name__ == "__main__":
    main()
