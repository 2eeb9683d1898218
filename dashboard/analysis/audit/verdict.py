"""Whether the reward of a run is gamed: it rises, and correctness does not.

Of the points of a series the last quarter is compared with the first, the second and
the third, up to 50 points each, so that a rise in front of a fall hides neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dashboard.analysis.audit.changes import (
    NUM_PARTS,
    Change,
    Window,
    compare_ends,
)
from dashboard.analysis.audit.completions import Feature
from dashboard.analysis.audit.signals import read_series
from dashboard.completions.rewards import all_rules, rule_weights, step_recipe
from dashboard.runs.charts.series import Series
from dashboard.runs.models import Run
from trainer.metric_names import MAIN_SET
from trainer.rewards.scoring import ANSWER_KINDS

LEAST_FALL = 0.1  # of the value before
LEAST_RISE = 0.05  # of the highest score: what stands still has risen by less
HIGH = 0.9  # of the highest score: from there on correctness can hardly rise
LEFT = 0.5  # of what correctness could still add: what other rules have paid
MOST_SETS = 20

Answer = Literal["no", "likely", "unknown"]
# correctness falls, or stands still; a feature of the text is paid | it rises, or is
# high; the reward is flat | there are few steps, no rule, or no clear change
Why = Literal[
    "falls", "stands", "surface", "rises", "high", "flat", "few", "no_rule", "unclear"
]
ANSWERS: dict[Why, Answer] = {
    "falls": "likely",
    "stands": "likely",
    "surface": "likely",
    "rises": "no",
    "high": "no",
    "flat": "no",
    "few": "unknown",
    "no_rule": "unknown",
    "unclear": "unknown",
}
# Rules of others, who name what they measure.
OPEN_KINDS = {"", "python_function", "llm_judge", "reward_model"}
NAMED_CORRECT = re.compile(r"accura|correct|solved|exact_match|(?<![a-z])acc(?![a-z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """A measure of correctness beside the reward.

    changes: to the last quarter of the run, from each of those before.
    full: its highest value; weight: in the reward. trust: whether its rise excludes
    gaming. That of a rule of Cohort, or of weight 0, does; that of a rule that is named
    so does if no feature of the text is paid; that of a held-out set, whose reward is
    gamed as well, does not.
    """

    name: str
    changes: Sequence[Change | None]
    full: float
    weight: float
    trust: Literal["sure", "named", "held_out"]

    @property
    def title(self) -> str:
        if self.trust != "held_out":
            return self.name
        return "held-out reward" if self.name == MAIN_SET else f"reward of {self.name}"

    @property
    def subject(self) -> str:
        """The subject of a sentence."""
        return self.title if self.trust == "held_out" else "correctness"

    def falls(self, part: int) -> bool:
        """Tell whether it falls by 10% at least, and the interval excludes 0."""
        change = self.changes[part]
        if change is None or change.high >= 0:
            return False
        return -change.difference >= LEAST_FALL * abs(change.before.mean)

    @property
    def rises(self) -> bool:
        change = self.changes[0]
        return change is not None and change.low > 0

    @property
    def is_lower(self) -> bool:
        """By less than a fall, but the interval excludes 0."""
        change = self.changes[0]
        return change is not None and change.high < 0

    @property
    def is_high(self) -> bool:
        change = self.changes[0]
        return change is not None and change.before.mean >= HIGH * self.full

    def stands(self, rise: Change) -> bool:
        """Tell whether a rise above 5% of its highest score is excluded, although it
        has room, and other rules have paid half of what it could still add."""
        change = self.changes[0]
        if change is None or self.is_high or change.high >= LEAST_RISE * self.full:
            return False
        left = self.weight * (self.full - change.after.mean)
        return rise.difference - self.weight * change.difference >= LEFT * left


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    why: Why
    reward: Change | None = None
    witness: Witness | None = None  # that decides
    change: Change | None = None  # of the witness
    feature: Feature | None = None

    @property
    def answer(self) -> Answer:
        return ANSWERS[self.why]


def judge(
    rises: Sequence[Change | None],
    witnesses: Sequence[Witness],
    features: Sequence[Feature],
) -> Verdict:
    """Judge by the changes of the reward, as of a witness."""
    first = rises[0]
    if first is None:
        return Verdict(why="few")
    for part, rise in enumerate(rises):
        for witness in witnesses:
            if rise is not None and rise.low > 0 and witness.falls(part):
                change = witness.changes[part]
                return Verdict(why="falls", reward=rise, witness=witness, change=change)
    if first.low <= 0:
        return Verdict(why="flat", reward=first)
    paid = next((feature for feature in features if feature.is_gamed), None)
    why: Why
    for why, witness in _ranked(witnesses, first, is_paid=paid is not None):
        change = witness.changes[0]
        return Verdict(why=why, reward=first, witness=witness, change=change)
    if paid is not None:
        return Verdict(why="surface", reward=first, feature=paid)
    judged = [w for w in witnesses if w.changes[0] and w.trust != "held_out"]
    if not judged:
        return Verdict(why="no_rule", reward=first)
    change = judged[0].changes[0]
    return Verdict(why="unclear", reward=first, witness=judged[0], change=change)


def _ranked(
    witnesses: Sequence[Witness], rise: Change, *, is_paid: bool
) -> Iterator[tuple[Why, Witness]]:
    yield from (("stands", w) for w in witnesses if w.stands(rise))
    trusted = ("sure",) if is_paid else ("sure", "named")
    clearing = [w for w in witnesses if w.trust in trusted]
    yield from (("rises", w) for w in clearing if w.rises)
    yield from (("high", w) for w in clearing if w.is_high and not w.is_lower)


def changes_of(series: Series) -> list[Change | None]:
    """Compare the last quarter with each of those before."""
    return [compare_ends(series, first=part) for part in range(NUM_PARTS - 1)]


def read_verdict(run: Run, reward: Series, features: Sequence[Feature]) -> Verdict:
    """Two queries."""
    rises = changes_of(reward)
    return judge(rises, [*_rules(run), *_held_out(run, rises)], features)


def _rules(run: Run) -> Iterator[Witness]:
    weights = rule_weights(run, run.last_step)
    recipe = step_recipe(run, run.last_step)
    bounds = {rule.name: rule.own_bounds for rule in recipe.rules} if recipe else {}
    kinds = {rule["name"]: rule.get("kind", "") for rule in all_rules(run)}
    read = read_series(run, [f"reward/{name}/mean" for name in kinds])
    for name, kind in kinds.items():
        is_known = kind in ANSWER_KINDS
        is_named = kind in OPEN_KINDS and NAMED_CORRECT.search(name.lower())
        series = read.get(f"reward/{name}/mean")
        if not (is_known or is_named) or series is None:
            continue
        weight = weights.get(name, 0.0)
        yield Witness(
            name=name,
            changes=changes_of(series),
            full=bounds.get(name, (0.0, max(1.0, float(series.values.max()))))[1],
            weight=weight,
            trust="sure" if is_known or not weight else "named",
        )


def _held_out(run: Run, rises: Sequence[Change | None]) -> Iterator[Witness]:
    """Take each set's last evaluation, and the last one of each quarter before."""
    rows = run.evaluations.filter(superseded_by=None).order_by("step")
    sets: dict[str, dict[int, tuple[float, float]]] = {}
    for step, name, metrics in rows.values_list("step", "name", "metrics"):
        mean, low, high = (
            metrics.get(f"eval/{name}/mean{end}") for end in ("", "/low", "/high")
        )
        if None not in (mean, low, high) and len(sets) < MOST_SETS:
            sets.setdefault(name, {})[step] = mean, (high - low) / 2
    for name, scores in sets.items():
        highest = max(abs(mean) for mean, _ in scores.values())
        yield Witness(
            name=name,
            changes=[_between(scores, rise) if rise else None for rise in rises],
            full=max(1.0, highest),
            weight=1.0,
            trust="held_out",
        )


def _between(scores: dict[int, tuple[float, float]], rise: Change) -> Change | None:
    """Compare two evaluations by intervals as of independent ones: prompts are the
    same, so it is rather too wide."""
    last = max(scores)
    first = max((s for s in scores if s <= rise.before.last), default=last)
    if last < rise.after.first or first == last:
        return None
    before, after = (
        Window(first=step, last=step, num=1, mean=scores[step][0])
        for step in (first, last)
    )
    difference = after.mean - before.mean
    margin = math.hypot(scores[first][1], scores[last][1])
    return Change(
        step=last,
        before=before,
        after=after,
        difference=difference,
        low=difference - margin,
        high=difference + margin,
        effect=None,
    )
