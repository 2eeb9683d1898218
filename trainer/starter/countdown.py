"""The starter's task: Countdown with three numbers, + and -, and texts that search.

A problem is `3 5 7 > 1`: reach 1 with 3, 5 and 7, each used once. A text that solves
it tries plans, marks each a hit (.) or a miss (!), then answers:

    <think>3+5=8,8+7=15!3+5=8,8-7=1.</think><answer>3+5-7</answer>
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

MAX_NUMBER = 15
MAX_TARGET = 30
HIT, MISS = ".", "!"


@dataclass(frozen=True, order=True)
class Problem:
    """Three different numbers, ascending, and the value to reach."""

    numbers: tuple[int, int, int]
    target: int


@dataclass(frozen=True)
class Plan:
    """`first ± second ± third`, computed from left to right, never below 0.

    >>> Plan((3, 5, 7), (1, -1)).value
    1
    """

    numbers: tuple[int, int, int]
    signs: tuple[int, int]

    @property
    def partial(self) -> int:
        return self.numbers[0] + self.signs[0] * self.numbers[1]

    @property
    def value(self) -> int:
        return self.partial + self.signs[1] * self.numbers[2]

    @property
    def expression(self) -> str:
        first, second, third = self.numbers
        return f"{first}{_sign(self.signs[0])}{second}{_sign(self.signs[1])}{third}"

    def worked(self, mark: str) -> str:
        """The plan computed step by step, such as `3+5=8,8-7=1.`"""
        first, second, third = self.numbers
        return (
            f"{first}{_sign(self.signs[0])}{second}={self.partial},"
            f"{self.partial}{_sign(self.signs[1])}{third}={self.value}{mark}"
        )


def _sign(sign: int) -> str:
    return "+" if sign > 0 else "-"


def plans_for(numbers: tuple[int, int, int]) -> list[Plan]:
    """Every plan over the numbers whose partial and final values are not negative."""
    found = [
        Plan((first, second, third), (sign, other_sign))
        for first, second, third in itertools.permutations(numbers)
        for sign in (1, -1)
        for other_sign in (1, -1)
    ]
    return [plan for plan in found if plan.partial >= 0 and plan.value >= 0]


def all_problems() -> list[Problem]:
    """Every solvable problem, in order."""
    return [
        Problem(numbers, target)
        for numbers in itertools.combinations(range(1, MAX_NUMBER + 1), 3)
        for target in sorted({plan.value for plan in plans_for(numbers)})
        if 1 <= target <= MAX_TARGET
    ]


def prompt_for(problem: Problem, chance: random.Random) -> str:
    """The problem as text, its numbers in a random order."""
    numbers = chance.sample(problem.numbers, 3)
    return f"{' '.join(map(str, numbers))} > {problem.target}"


def searching_text(
    problem: Problem,
    chance: random.Random,
    *,
    hit_rate: float,
    give_up_rate: float,
    max_tries: int,
) -> str:
    """A completion that tries plans until one hits or it gives up.

    A try is right with probability `hit_rate`; after a miss the text gives up with
    probability `give_up_rate` and answers with that miss. So the format is always
    right, the arithmetic too, and the answer seldom: what is left to learn from
    rewards is to go on trying, and to guess better.
    """
    plans = plans_for(problem.numbers)
    hits = [plan for plan in plans if plan.value == problem.target]
    misses = [plan for plan in plans if plan.value != problem.target]
    tries = []
    for number in range(1, max_tries + 1):
        is_hit = chance.random() < hit_rate or not misses
        plan = chance.choice(hits if is_hit else misses)
        tries.append(plan.worked(HIT if is_hit else MISS))
        if is_hit or number == max_tries or chance.random() < give_up_rate:
            break
    return f"<think>{''.join(tries)}</think><answer>{plan.expression}</answer>"


def solving_text(problem: Problem, chance: random.Random, *, max_misses: int) -> str:
    """A completion that misses at most so often, hits, and answers with the hit."""
    plans = plans_for(problem.numbers)
    hit = chance.choice([plan for plan in plans if plan.value == problem.target])
    misses = [plan for plan in plans if plan.value != problem.target]
    num_misses = chance.randint(0, min(max_misses, len(misses)))
    tries = [plan.worked(MISS) for plan in chance.sample(misses, num_misses)]
    text = "".join([*tries, hit.worked(HIT)])
    return f"<think>{text}</think><answer>{hit.expression}</answer>"
