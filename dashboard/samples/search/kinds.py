"""What can be told of a completion by its numbers, as bits of one byte.

right: its reward is the highest that the recipe can give at its step, as in pass@k.
right_low: every rule that compares with the row's answer gives its full score, and yet
    the reward is below the mean of its group.
high_short: of its step, the reward is in the highest tenth and the length in the
    shortest tenth, and both beyond the median.
near: nearly the same words as another completion of its group (near_duplicates.py).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from dashboard.runs.models import Run
from dashboard.samples.recipes import all_rules, recipe_spec, right_from, step_recipe
from dashboard.samples.search.columns import (
    CUT_END,
    KIND,
    MOST_TALLIED,
    NUMBER,
    UNKNOWN_END,
    Column,
    Columns,
)
from trainer.rewards.rules.rightness import ANSWER_RULES
from trainer.rewards.spec import Recipe, bound_tolerance

CUT, UNSCORED, RIGHT, RIGHT_LOW, HIGH_SHORT, NEAR, END_UNKNOWN = (
    1 << bit for bit in range(7)
)
ANSWER_KINDS = {
    *ANSWER_RULES,
    "code_tests",
    "countdown",
    "reasoning_answer",
    "reasoning_gym",
}
TENTH = 0.1


def answer_rules(recipe: Recipe | None) -> dict[str, float]:
    """The full score of each rule that compares with what the row says is right."""
    rules = recipe.rules if recipe else ()
    full = {rule.name: rule.own_bounds[1] for rule in rules if _compares(rule.kind)}
    return {name: score - bound_tolerance(score) for name, score in full.items()}


def compares_answers(run: Run) -> bool:
    """Whether a rule of any phase does."""
    return any(_compares(rule.get("kind", "")) for rule in all_rules(run))


def _compares(kind: str) -> bool:
    return kind in ANSWER_KINDS


def tell_kinds(run: Run, columns: Columns) -> Column:
    """All but `near`, for which the texts are needed."""
    kinds = np.zeros(columns.num_completions, KIND)
    if not len(kinds):
        return kinds
    counts = columns.steps["num_completions"]
    steps = columns.steps["step"].tolist()
    bounds = right_from(run, steps)
    known = [bounds[step] for step in steps]
    from_reward = np.array([math.inf if each is None else each for each in known])
    kinds[columns.ends == CUT_END] |= CUT
    kinds[columns.ends == UNKNOWN_END] |= END_UNKNOWN
    kinds[np.isnan(columns.rewards)] |= UNSCORED
    kinds[columns.rewards >= np.repeat(from_reward, counts)] |= RIGHT
    is_low = columns.rewards < _group_means(columns)
    kinds[_has_right_answer(run, columns) & is_low] |= RIGHT_LOW
    ends = np.cumsum(counts)
    for start, end in zip(ends - counts, ends, strict=True):
        is_odd = _is_high_and_short(
            columns.rewards[start:end], columns.lengths[start:end]
        )
        kinds[start:end][is_odd] |= HIGH_SHORT
    return kinds


def _has_right_answer(run: Run, columns: Columns) -> Column:
    """By the rules of the recipe in force at the step."""

    @cache
    def asked(key: int) -> dict[str, float]:
        return answer_rules(step_recipe(run, step_of[key]))

    steps = columns.steps["step"].tolist()
    keys = [id(recipe_spec(run, step)) for step in steps]
    step_of = dict(zip(keys, steps, strict=True))
    found = np.zeros(columns.num_completions, bool)
    place = {name: row for row, name in enumerate(columns.rule_names)}
    end = 0
    for key, count in zip(keys, columns.steps["num_completions"].tolist(), strict=True):
        start, end = end, end + count
        rules = asked(key)
        if rules and rules.keys() <= place.keys():
            scores = columns.scores[[place[name] for name in rules], start:end]
            full = np.array(list(rules.values()))[:, None]
            found[start:end] = (scores >= full).all(axis=0)
    return found


def _group_means(columns: Columns) -> Column:
    """Of each completion's group; equal rewards are not below their mean."""
    sizes = columns.group_sizes
    starts = np.cumsum(sizes) - sizes
    is_scored = ~np.isnan(columns.rewards)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(is_scored, columns.rewards, 0.0), starts)
        means = sums / np.maximum(np.add.reduceat(is_scored.astype(int), starts), 1)
        means -= 1e-9 * np.maximum(1.0, np.abs(means))
    return np.repeat(means, sizes)


def _is_high_and_short(rewards: Column, lengths: Column) -> Column:
    """Of one step."""
    scored = np.sort(rewards[~np.isnan(rewards)])
    if not len(scored):
        return np.zeros(len(rewards), bool)
    shortest = np.sort(lengths)
    is_high = (rewards >= _at(scored, 1 - TENTH)) & (rewards > _at(scored, 0.5))
    is_short = (lengths <= _at(shortest, TENTH)) & (lengths < _at(shortest, 0.5))
    found: Column = is_high & is_short
    return found


def _at(ordered: Column, share: float) -> float:
    return float(ordered[round(share * (len(ordered) - 1))])


def tell_full_scores(columns: Columns) -> Column:
    """A bit for each of the first eight rules: it gave 1 or more."""
    return _as_bits(_first_scores(columns) >= 1, columns.num_completions)


def tell_no_scores(columns: Columns) -> Column:
    """It gave 0 or less."""
    return _as_bits(_first_scores(columns) <= 0, columns.num_completions)


def _first_scores(columns: Columns) -> Column:
    """As they are compared with what is asked for."""
    with np.errstate(over="ignore"):
        return columns.scores[:MOST_TALLIED].astype(NUMBER)


def _as_bits(is_so: Column, num: int) -> Column:
    bits = np.zeros(num, KIND)
    for row, each in enumerate(is_so):
        bits |= each.astype(KIND) << row
    return bits
