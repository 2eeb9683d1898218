"""Warnings about a recipe, derived from scores. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainer.rewards.scoring import Score

# Fewer completions may well agree by chance.
MIN_COMPLETIONS = 4
UNCHECKED = "unchecked"
# Share of the highest reward that a baseline completion must not reach.
HIGH_SHARE = 0.5
MOST_POSITIONS = 8  # rows that a warning names


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWarning:
    kind: str
    short: str  # for one line
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
    """Rows for which a rule cannot score any completion."""

    rule: str
    error: str  # of the first one
    positions: tuple[int, ...]
    num_rows: int  # of the checked rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """The mean score of a completion that solves nothing, over some rows."""

    label: str  # "an empty completion"
    mean: float
    positions: tuple[int, ...]  # of the highest scores
    num_rows: int


def find_in_groups(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    return [
        *find_constant_rules(groups),
        *find_rules_that_agree(groups),
        *find_flat_groups(groups),
    ]


def find_constant_rules(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Rules with the same score for every completion."""
    found = []
    for rule, values in _by_rule(groups).items():
        given = [value for value in values if value is not None]
        if len(given) < MIN_COMPLETIONS or len(set(given)) > 1:
            continue
        found.append(
            RecipeWarning(
                kind="constant",
                short=f"{rule}: {given[0]:.4g} for all {len(given):,}",
                sentence=f"Rule {rule} gives {given[0]:.4g} to all {len(given):,} "
                "completions.",
                remedy="A constant score adds no signal. Check what the rule reads, "
                "test completions that differ in it, or remove the rule.",
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
                short=f"{one} = {other} for all {len(pairs):,}",
                sentence=f"Rules {one} and {other} give the same score to each of "
                f"{len(pairs):,} completions.",
                remedy="The second rule adds only weight. Remove one, or change what "
                "it reads.",
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
        groups_ = "each group have" if len(compared) > 1 else "the group have"
        sentence = f"All completions of {groups_} the same reward: no training signal."
    else:
        sentence = (
            f"In {len(flat):,} of {len(compared):,} groups all completions have the "
            "same reward: no training signal."
        )
    return [
        RecipeWarning(
            kind="flat",
            short=f"{len(flat):,} of {len(compared):,} groups without signal",
            sentence=sentence,
            remedy="If all fail, use easier rows or a rule with partial credit. If "
            "all succeed, use harder rows.",
            positions=_positions(flat),
        )
    ]


def tell_unchecked(num_checked: int, num_rows: int, why: str) -> RecipeWarning:
    """A note, not a finding: the other rows were not scored."""
    short = f"{num_checked:,} of {num_rows:,} rows checked. {why}"
    return RecipeWarning(kind=UNCHECKED, short=short, sentence=short, remedy="")


def find_unread_references(
    unread: Sequence[UnreadReference], *, num_checked: int, num_rows: int
) -> list[RecipeWarning]:
    return [
        RecipeWarning(
            kind="reference",
            short=f"{each.rule}: {each.num_rows:,} of {num_checked:,} rows not scored",
            sentence=f"Rule {each.rule} cannot score {each.num_rows:,} of "
            f"{_rows_checked(num_checked, num_rows)}. {each.error}",
            remedy="Rows without a score give no training signal. Map another column "
            "as the answer, change the rule's settings, or remove the rows.",
            positions=each.positions,
        )
        for each in unread
    ]


def find_high_baselines(
    baselines: Sequence[BaselineScore],
    *,
    bounds: tuple[float, float],
    num_rows: int,
    least_rows: int = 1,
) -> list[RecipeWarning]:
    """Completions that solve nothing and get much of the highest reward.

    Much is HIGH_SHARE of the way up to it from 0, or from the lowest reward where that
    is more than 0 or the highest is not. A mean over fewer than `least_rows` says
    nothing.
    """
    low, high = bounds
    floor = 0.0 if low < 0 < high else low
    found = []
    for each in baselines:
        share = (each.mean - floor) / (high - floor) if high > floor else 0.0
        if share < HIGH_SHARE or each.num_rows < least_rows:
            continue
        label = f"{each.label[:1].upper()}{each.label[1:]}"
        found.append(
            RecipeWarning(
                kind="trivial",
                short=f"{label} would earn {each.mean:.4g} of {high:.4g}",
                sentence=f"{label} would earn {each.mean:.4g} of {high:.4g} on "
                f"average over {_rows_checked(each.num_rows, num_rows)}.",
                remedy="The model learns this before it learns the task. Increase the "
                "weight of correctness, or require more than the format.",
                positions=each.positions,
            )
        )
    return found


def _rows_checked(num_checked: int, num_rows: int) -> str:
    """
    >>> "all 12 rows", "200 checked rows (of 5,000)"
    """
    if num_checked == num_rows:
        return f"all {num_rows:,} rows"
    return f"{num_checked:,} checked rows (of {num_rows:,})"


def _by_rule(groups: Sequence[ScoredGroup]) -> Mapping[str, list[float | None]]:
    scores = [score for group in groups for score in group.scores]
    names = list(dict.fromkeys(name for score in scores for name in score.rules))
    return {name: [score.rules.get(name) for score in scores] for name in names}


def _positions(groups: Sequence[ScoredGroup]) -> tuple[int, ...]:
    return tuple(group.position for group in groups)[:MOST_POSITIONS]
