"""Completions from before and after a change, for people to read."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from itertools import islice, zip_longest
from typing import TypeVar

from dashboard.insights.audit.changes import Window
from dashboard.insights.audit.sampled import steps_with_groups
from dashboard.runs.models import Run
from dashboard.samples.models import Completion, Group

NUM_EXAMPLES = 10
MOST_STEPS = 200  # among which those of the examples are drawn

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


def draw_examples(run: Run, window: Window) -> list[Completion]:
    """Ten of the window's steps, or all that there are; by step. Four queries.

    They are drawn at random, so that they are like the others, from as many steps and
    groups as there are; everybody who looks sees the same.
    """
    seed = f"{run.pk} {window.first} {window.last}"
    chance = random.Random(seed)  # noqa: S311 - which ones are shown is no secret
    steps = steps_with_groups(
        run, first=window.first, last=window.last, most=MOST_STEPS
    )
    steps = chance.sample(steps, min(NUM_EXAMPLES, len(steps)))
    of_steps = Group.objects.current().filter(run=run, step__in=steps)
    ids = _deal(of_steps.order_by("id").values_list("step", "pk"), chance)
    groups = Group.objects.filter(pk__in=ids).prefetch_related("packed_completions")
    ordered = groups.order_by("pk")
    drawn = _deal(
        ((group.pk, c) for group in ordered for c in group.completions), chance
    )
    return sorted(drawn, key=lambda c: (c.group.step, c.group.prompt_index, c.position))


def _deal(pairs: Iterable[tuple[Key, T]], chance: random.Random) -> list[T]:
    """Up to ten of the second ones: one of each first one in turn, in random order."""
    by_key: dict[Key, list[T]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    hands = list(by_key.values())
    chance.shuffle(hands)
    for hand in hands:
        chance.shuffle(hand)
    rounds = (each for turn in zip_longest(*hands) for each in turn)
    return list(islice((each for each in rounds if each is not None), NUM_EXAMPLES))
