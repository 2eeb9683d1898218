"""Scoring after sampling, in the trainer, beside scoring in workers meanwhile.

    python -m tests.bench.bench_scoring --groups 16 --group 8

The completions are worked solutions that end in a fraction, told of one group after
the other. Sampling is either this machine's own work, as without a GPU, or a wait of
the same length, as with one. Both ways take turns.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median

from tests.bench.machine import say, spread
from trainer.config import RewardConfig
from trainer.data import Prompt, Row
from trainer.scoring import HERE, Scorer
from trainer.types import Completion, Group

_WORK = "Since $x^2 + {b}x = {a}$, the ratio of {a} to {b} is what is left of it.\n"


@dataclass
class Times:
    """Seconds of each round: all of it, and what came behind the last completion."""

    whole: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


def make_groups(
    num_groups: int, group_size: int, *, lines: int, seed: int
) -> tuple[list[Prompt], list[tuple[Completion, ...]]]:
    """Prompts, and completions of which about every second one is right."""
    chance = random.Random(seed)
    prompts, groups = [], []
    for index in range(num_groups):
        a, b = chance.randrange(1, 999), chance.randrange(2, 99)
        row = Row(index=index, prompt="?", answer=f"{a}/{b}", columns={})
        prompts.append(Prompt(row=row, text="?", token_ids=(3,)))
        groups.append(
            tuple(
                _completion(a * k + chance.randrange(2), b * k, lines=lines)
                for k in range(1, group_size + 1)
            )
        )
    return prompts, groups


def _completion(a: int, b: int, *, lines: int) -> Completion:
    text = (
        _WORK.format(a=a, b=b) * lines + rf"So it is $\boxed{{\frac{{{a}}}{{{b}}}}}$."
    )
    return Completion(text=text, token_ids=(3,), logprobs=(0.0,), end_reason="stop")


def run_round(
    scorer: Scorer,
    prompts: list[Prompt],
    groups: list[tuple[Completion, ...]],
    reward: RewardConfig,
    *,
    sample: Callable[[], None],
    times: Times,
) -> list[Group]:
    begin = time.perf_counter()
    scoring = scorer.begin(prompts, reward)
    for place, completions in enumerate(groups):
        sample()
        scoring.add(place, completions)
    sampled = time.perf_counter()
    found = scoring.finish(groups)
    times.whole.append(time.perf_counter() - begin)
    times.waited.append(time.perf_counter() - sampled)
    return found


def compute_for(seconds: float) -> None:
    """Processor time of one core, so that what else runs there is not counted."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1_000))


def compare(args: argparse.Namespace, *, computes: bool, num_workers: int) -> str:
    rule = {"name": "math", "kind": "math_verify", "params": {"source": "whole"}}
    reward = RewardConfig.model_validate({"recipe": {"rules": [rule]}})
    act = compute_for if computes else time.sleep
    pace = args.seconds / args.groups
    here, there = Times(), Times()
    with closing(Scorer(num_workers)) as helped:
        for turn in range(args.rounds + 1):  # the first one starts graders
            prompts, groups = make_groups(
                args.groups, args.group, lines=args.lines, seed=turn
            )
            found = [
                run_round(
                    scorer,
                    prompts,
                    groups,
                    reward,
                    sample=lambda: act(pace),
                    times=times,
                )
                for scorer, times in ((HERE, here), (helped, there))
            ]
            assert found[0] == found[1]
    ratios = [a / b for a, b in zip(here.whole[1:], there.whole[1:], strict=True)]
    return (
        f"| {'this machine' if computes else 'a GPU (waiting)'} | {num_workers} "
        f"| {median(here.whole[1:]):.2f}, {median(here.waited[1:]):.2f} "
        f"| {median(there.whole[1:]):.2f}, {median(there.waited[1:]):.2f} "
        f"| {spread(ratios, '.2f')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--lines", type=int, default=8, help="of each solution")
    parser.add_argument("--seconds", type=float, default=1.0, help="of sampling")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    say("| sampled by | workers | in the trainer: s, of it waited | workers | ratio |")
    say("|---|---|---|---|---|")
    for computes in (False, True):
        for num_workers in args.workers:
            say(compare(args, computes=computes, num_workers=num_workers))


if __name__ == "__main__":
    main()
