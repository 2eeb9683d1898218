"""How long quick rules take to score a step's completions, in one process.

    python -m tests.bench.bench_rules --completions 1024

The recipe has a gate, a clip and a schedule. Completions are reasoned answers, most of
them right, in groups of 8.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from tests.bench.machine import say
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe

GROUP_SIZE = 8
RULES = [
    {"name": "answer", "kind": "numeric_answer", "params": {"source": "tags"}},
    {"name": "format", "kind": "format_tags", "weight": 0.5},
    {"name": "tags", "kind": "tag_count", "weight": 0.1, "clip": {"high": 0.9}},
    {
        "name": "short",
        "kind": "length",
        "weight": 0.2,
        "only_if": {"rule": "answer", "at_least": 1},
        "params": {"soft_edge": 500},
    },
    {
        "name": "repeats",
        "kind": "repetition",
        "schedule": {"points": [{"step": 100, "weight": 0.5}]},
    },
]


def make_groups(num_completions: int, *, lines: int, seed: int) -> list[list[Sample]]:
    chance = random.Random(seed)
    groups = []
    for _ in range(num_completions // GROUP_SIZE):
        answer = chance.randrange(1_000)
        groups.append(
            [
                Sample(
                    "?", _completion(answer + chance.randrange(2), lines), str(answer)
                )
                for _ in range(GROUP_SIZE)
            ]
        )
    return groups


def _completion(answer: int, lines: int) -> str:
    steps = "".join(
        f"Step {n}: {n} and {answer} make {n + answer}.\n" for n in range(lines)
    )
    return f"<think>\n{steps}</think>\n<answer>{answer}</answer>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=1_024)
    parser.add_argument("--lines", type=int, default=32, help="of each completion")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    recipe = Recipe.model_validate({"rules": RULES})
    seconds = []
    for turn in range(args.rounds + 1):  # the first one compiles patterns
        groups = make_groups(args.completions, lines=args.lines, seed=turn)
        begin = time.process_time()
        for group in groups:
            score_all(recipe, group, step=50)
        seconds.append(time.process_time() - begin)
    say("| completions | rules | processor seconds | completions a second |")
    say("|---|---|---|---|")
    took = median(seconds[1:])
    say(
        f"| {args.completions:,} | {len(RULES)} | {took:.3f} "
        f"| {args.completions / took:,.0f} |"
    )


if __name__ == "__main__":
    main()
