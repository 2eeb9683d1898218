"""Warnings about a recipe, as far as scores can tell. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainer.rewards.scoring import Score

# Fewer completions may well agree by chance.
MIN_COMPLETIONS = 4
# Of the way from nothing to the highest reward. Half of it for nothing is a lot.
HIGH_SHARE = 0.5
MOST_POSITIONS = 8  # rows that a warning names


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWarning:
    kind: str
    sentence: str
    remedy: str
    positions: tuple[int, ...] = ()  # rows of the dataset that show it


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scores of the completions of one row."""

    position: int
    scores: tuple[Score, ...]

    @property
    def totals(self) -> list[float]:
        return [score.total for score in self.scores if score.total is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadReference:
    """Rows that a rule cannot judge any completion of."""

    rule: str
    error: str  # of the first one
    positions: tuple[int, ...]
    num_rows: int  # how many there are among those looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """What a completion that solves nothing is given, over some rows."""

    label: str  # "an empty completion"
    mean: float
    positions: tuple[int, ...]  # where it is given the most
    num_rows: int


def find_in_groups(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    return [
        *find_constant_rules(groups),
        *find_rules_that_agree(groups),
        *find_flat_groups(groups),
    ]


def find_constant_rules(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Rules that give all completions of several the same."""
    found = []
    for rule, values in _by_rule(groups).items():
        given = [value for value in values if value is not None]
        if len(given) < MIN_COMPLETIONS or len(set(given)) > 1:
            continue
        found.append(
            RecipeWarning(
                kind="constant",
                sentence=f"Rule {rule} gives {given[0]:.4g} to all {len(given):,} "
                "completions.",
                remedy="It adds the same to every reward and so teaches nothing here. "
                "Look whether it reads the completion as you think; try completions "
                "that differ in what it looks at, or take it out.",
                positions=_positions(groups),
            )
        )
    return found


def find_rules_that_agree(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Pairs of rules that differ between completions, but never from one another."""
    by_rule = _by_rule(groups)
    found = []
    for one, other in combinations(by_rule, 2):
        pairs = [
            (a, b)
            for a, b in zip(by_rule[one], by_rule[other], strict=True)
            if a is not None and b is not None
        ]
        varies = len({a for a, _ in pairs}) > 1
        if len(pairs) < MIN_COMPLETIONS or not varies or any(a != b for a, b in pairs):
            continue
        found.append(
            RecipeWarning(
                kind="agree",
                sentence=f"Rules {one} and {other} give the same score to each of "
                f"{len(pairs):,} completions.",
                remedy="One of them is enough: together they only weigh more. Keep "
                "one, or change what the other looks at.",
                positions=_positions(groups),
            )
        )
    return found


def find_flat_groups(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Groups whose totals do not differ, so that each advantage in them is 0."""
    compared = [group for group in groups if len(group.totals) > 1]
    flat = [group for group in compared if len(set(group.totals)) == 1]
    if not flat:
        return []
    if len(flat) == len(compared):
        message = (
            "The total never differs within a group"
            if len(compared) > 1
            else "The total does not differ within the group"
        )
        sentence = f"{message}: there is no signal to learn from."
    else:
        sentence = (
            f"In {len(flat):,} of {len(compared):,} groups all completions get the "
            "same total, so these teach nothing."
        )
    return [
        RecipeWarning(
            kind="flat",
            sentence=sentence,
            remedy="Where all fail, use easier rows or a rule that gives partial "
            "credit; where all succeed, use harder rows.",
            positions=_positions(flat),
        )
    ]


def find_unread_references(
    unread: Sequence[UnreadReference], *, num_looked: int, num_rows: int
) -> list[RecipeWarning]:
    return [
        RecipeWarning(
            kind="reference",
            sentence=f"Rule {each.rule} cannot judge {each.num_rows:,} of "
            f"{_looked(num_looked, num_rows)}. {each.error}",
            remedy="Without a score these rows train nothing. Map another column as "
            "the answer, change the rule's settings, or leave the rows out.",
            positions=each.positions,
        )
        for each in unread
    ]


def find_high_baselines(
    baselines: Sequence[BaselineScore],
    *,
    bounds: tuple[float, float],
    num_rows: int,
) -> list[RecipeWarning]:
    """Completions that solve nothing and are given much of the highest reward.

    Much is HIGH_SHARE of the way up to it from 0, or from the lowest reward where that
    is more than 0 or the highest is not.
    """
    low, high = bounds
    floor = 0.0 if low < 0 < high else low
    found = []
    for each in baselines:
        share = (each.mean - floor) / (high - floor) if high > floor else 0.0
        if share < HIGH_SHARE:
            continue
        found.append(
            RecipeWarning(
                kind="trivial",
                sentence=f"{each.label[:1].upper()}{each.label[1:]} is given "
                f"{each.mean:.4g} on average, {share:.0%} of the way to the highest "
                f"reward, {high:.4g} ({_looked(each.num_rows, num_rows)}).",
                remedy="The model will find this out before it learns the task. Give "
                "more weight to what is right, or ask for more than the form.",
                positions=each.positions,
            )
        )
    return found


def _looked(num_looked: int, num_rows: int) -> str:
    """
    >>> "all 12 rows", "200 rows looked at, of 5,000"
    """
    if num_looked == num_rows:
        return f"all {num_rows:,} rows"
    return f"{num_looked:,} rows looked at, of {num_rows:,}"


def _by_rule(groups: Sequence[ScoredGroup]) -> Mapping[str, list[float | None]]:
    scores = [score for group in groups for score in group.scores]
    names = list(dict.fromkeys(name for score in scores for name in score.rules))
    return {name: [score.rules.get(name) for score in scores] for name in names}


def _positions(groups: Sequence[ScoredGroup]) -> tuple[int, ...]:
    return tuple(group.position for group in groups)[:MOST_POSITIONS]
