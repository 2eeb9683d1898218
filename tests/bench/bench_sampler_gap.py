"""A step with and without the gap between sampler and trainer in its log.

    python -m tests.bench.bench_sampler_gap --steps 40

Two runs of the starter's model take turns, step by step, with the same completions: one
logs the gap, the other does not. What is compared is the time of a step, pair by pair;
beside it stands the time that measuring and logging took within the steps, which other
work on the machine hides less.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trainer.starter
from tests.bench.machine import heading, say, spread, table
from tests.bench.ours import our_steps
from tests.bench.subprocesses import Give, Subprocess, take_turns
from tests.bench.work import Step, Work, write_rows

MODEL = Path(trainer.starter.__file__).parent / "countdown" / "model"
HEADER = ("prompts × G, new tokens", "seconds of a step", "on / off", "within a step")
LIMIT = 0.005  # of a step


def timed_steps(give: Give, work: Work) -> None:
    """Steps with the seconds of measuring and logging the gap as a phase."""
    import trainer.grpo
    from trainer.output.journal import Journal

    taken = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                taken[0] += time.perf_counter() - begin

        return measured

    def give_timed(found: Any) -> None:
        if isinstance(found, Step):
            found = replace(found, phases=found.phases | {"mismatch": taken[0]})
            taken[0] = 0.0
        give(found)

    trainer.grpo.gaps_of_all = timed(trainer.grpo.gaps_of_all)
    Journal._record_mismatch = timed(Journal._record_mismatch)
    our_steps(give_timed, work)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args(arguments)
    work = Work(
        model=args.model,
        rows=write_rows(args.model, Path()),
        num_prompts=args.prompts,
        group_size=args.group,
        max_new_tokens=args.new,
        device=args.device,
    )
    with (
        Subprocess(timed_steps, work) as on,
        Subprocess(timed_steps, replace(work, mismatch=False)) as off,
    ):
        sides = [on, off]
        for side in sides:
            side.wait_until_ready()
        ours, others = take_turns(sides, name=work.name, num_steps=args.steps, warmup=3)
    assert [step.lengths for step in ours] == [step.lengths for step in others]
    shares = [step.phases["mismatch"] / step.seconds for step in ours]
    ratios = [a.seconds / b.seconds for a, b in zip(ours, others, strict=True)]
    row = [
        f"{args.prompts} × {args.group}, {args.new}",
        spread([step.seconds for step in ours], ".3f"),
        spread(ratios, ".4f"),
        spread([100 * share for share in shares], ".3f") + " %",
    ]
    say(heading("tests.bench.bench_sampler_gap"))
    say(table(HEADER, [row]))
    say(f"At most {LIMIT:.1%} within a step.\n")


if __name__ == "__main__":
    main()
