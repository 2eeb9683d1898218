"""A whole GRPO step beside TRL's: the same model, prompts, lengths and machine.

    python -m tests.bench.bench_step --model FOLDER --prompts 16 --group 8

Each trains in a process of its own, and they take turns, step by step, so that whatever
else the machine does falls on both. TRL runs at its best: without gradient
checkpointing, and with the number of micro-batches that was fastest before the
comparison. What is compared is completion tokens a second over a whole step (sampling,
scoring, log-probs and update), and the most memory that each process held. A second
table puts Cohort's parts of a step beside the least time that they can take here.

    python -m tests.bench.bench_step --memory ours|trl|both …
    python -m tests.bench.bench_step --growth …

The first runs one of them, or one after the other, for three steps and prints the peak
memory; the second measures Cohort alone at 128 to 2,048 completions a step.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import growth
from tests.bench.apart import Apart
from tests.bench.comparison import (
    LIMIT_HEADER,
    STEP_HEADER,
    compare,
    limit_rows,
    rates_line,
    step_row,
)
from tests.bench.machine import heading, mebibytes, say, table, tell
from tests.bench.ours import our_steps
from tests.bench.theirs import their_steps, what_is_missing
from tests.bench.work import BETA, Work, write_rows

MEMORY_HEADER = ("prompts × G, new tokens, β", "TRL, peak MiB", "Cohort", "ratio")


def peak_of(work: Work, who: str, *, micro_batches: int, num_steps: int = 3) -> int:
    """Bytes: the most that one of them holds in a few steps."""
    side = (
        Apart(our_steps, work)
        if who == "ours"
        else Apart(their_steps, work, micro_batches=micro_batches)
    )
    tell(f"{work.name}: memory, {who}")
    with side:
        side.wait_until_ready()
        return max(side.step().peak_bytes for _ in range(num_steps))


def memory_row(work: Work, which: str, *, micro_batches: int) -> list[str]:
    found = {
        who: peak_of(work, who, micro_batches=micro_batches)
        for who in ("trl", "ours")
        if which in (who, "both")
    }
    shown = [mebibytes(found[who]) if who in found else "–" for who in ("trl", "ours")]
    ratio = f"{found['ours'] / found['trl']:.2f}" if len(found) == 2 else "–"
    return [work.name, *shown, ratio]


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        rows = write_rows(args.model, Path(name))
        works = [_work(args, rows, beta=beta) for beta in args.beta]
        if args.growth:
            _growth(args, rows)
        elif args.memory:
            _memory(args, works)
        else:
            _steps(args, works)


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


def _memory(args: argparse.Namespace, works: Sequence[Work]) -> None:
    count = args.micro_batches[0]
    rows = [memory_row(work, args.memory, micro_batches=count) for work in works]
    say(heading("tests.bench.bench_step"))
    say(table(MEMORY_HEADER, rows))


def _growth(args: argparse.Namespace, rows: Path) -> None:
    works = [
        _work(args, rows, beta=beta, size=size)
        for beta in args.beta[:1]
        for size in args.sizes
    ]
    taken = growth.measure_growth(works, num_steps=args.steps)
    say(heading("tests.bench.bench_step"))
    say(table(growth.HEADER, growth.rows(works, taken)))


def _work(
    args: argparse.Namespace,
    rows: Path,
    *,
    beta: float,
    size: tuple[int, int] | None = None,
) -> Work:
    num_prompts, group_size = size or (args.prompts, args.group)
    return Work(
        model=args.model,
        rows=rows,
        num_prompts=num_prompts,
        group_size=group_size,
        max_new_tokens=args.new,
        beta=beta,
        micro_batch_tokens=args.micro_batch_tokens,
        device=args.device,
        dtype=args.dtype,
    )


def _size(text: str) -> tuple[int, int]:
    num_prompts, group_size = text.split("x")
    return int(num_prompts), int(group_size)


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
        help="of TRL, of which the fastest is taken; for its memory the first",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--memory", choices=["ours", "trl", "both"])
    parser.add_argument("--growth", action="store_true")
    parser.add_argument(
        "--sizes",
        type=_size,
        nargs="+",
        default=list(growth.SIZES),
        metavar="PxG",
        help="prompts and completions of each, for the growth",
    )
    return parser


if __name__ == "__main__":
    main()
