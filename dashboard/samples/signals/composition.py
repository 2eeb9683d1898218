"""How a run's rules make a reward, and how their scores become parts of it."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from dashboard.samples.rewards import PENALTIES, right_reward
from dashboard.samples.signals.records import Numbers
from trainer.config import RunConfig
from trainer.rewards.rules.rightness import AnswerReader, answer_reader
from trainer.rewards.scoring import parts_of
from trainer.rewards.spec import Recipe

# sum: parts add up to the reward. normalized: each rule is compared by itself, and
# their advantages add up. The others: parts are joined, and add up to nothing.
Kind = Literal["sum", "normalized", "product", "minimum"]

DOMINANT = 0.9
DIFFERS = 0.1  # of the groups: less is hardly anything to learn from
HEARD = 0.5  # of what its weight asks for


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Of one phase of a run; without a recipe when a rule is not known any more."""

    kind: Kind
    recipe: Recipe | None
    weights: Mapping[str, float]  # of what the recipe does not name, or is unknown
    right: float | None = None  # the reward of a right one, where no recipe tells

    def parts(
        self,
        rules: Sequence[Mapping[str, float | None]],
        names: Sequence[str],
        step: int,
    ) -> Numbers:
        """Weight × score that counts, [completions, names]; NaN where there is none."""
        if self.recipe is not None and not self._is_plain:
            return self._gated_parts(rules, names, step)
        scores = [[scored.get(name) for name in names] for scored in rules]
        matrix = np.array(scores, dtype=np.float64).reshape(len(rules), len(names))
        return matrix * self.weights_at(step, names)

    def weights_at(self, step: int, names: Sequence[str]) -> Numbers:
        weights = dict(self.weights)
        if self.recipe is not None:
            weights |= {rule.name: rule.weight_at(step) for rule in self.recipe.rules}
        return np.array([weights.get(name, 1.0) for name in names])

    def right_from(self, step: int) -> float | None:
        return self.right if self.recipe is None else right_reward(self.recipe, step)

    @cached_property
    def read_answer(self) -> AnswerReader | None:
        """None where no rule reads an answer that two completions could share."""
        return None if self.recipe is None else answer_reader(self.recipe)

    @property
    def _is_plain(self) -> bool:
        assert self.recipe is not None
        return all(
            rule.clip is None and rule.only_if is None for rule in self.recipe.rules
        )

    def _gated_parts(
        self,
        rules: Sequence[Mapping[str, float | None]],
        names: Sequence[str],
        step: int,
    ) -> Numbers:
        assert self.recipe is not None
        matrix = np.full((len(rules), len(names)), np.nan)
        for row, scored in zip(matrix, rules, strict=True):
            parts = parts_of(self.recipe, scored, step=step)
            for place, name in enumerate(names):
                if name in parts:
                    value = parts[name].value
                else:
                    score = scored.get(name)
                    weight = self.weights.get(name, 1.0)
                    value = None if score is None else weight * score
                row[place] = np.nan if value is None else value
        return matrix


@dataclass(frozen=True)
class Compositions:
    """Of a whole run, by the first step of each phase."""

    first_steps: tuple[int, ...]
    phases: tuple[Composition, ...]

    def at(self, step: int) -> Composition:
        return self.phases[max(0, bisect_right(self.first_steps, step) - 1)]


# Most batches are of a few runs, whose configs were frozen at launch.
@lru_cache(maxsize=64)
def read_compositions(config: str) -> Compositions:
    """From a run's config as JSON text."""
    tree = json.loads(config)
    try:
        phases = RunConfig.model_validate(tree).phase_configs
    except ValueError:
        return Compositions((1,), (_unknown(tree),))
    return Compositions(
        tuple(phase.first_step for phase in phases),
        tuple(_composition(phase.config) for phase in phases),
    )


def _composition(config: RunConfig) -> Composition:
    recipe = config.reward.recipe
    if config.compares_rules:
        weights = {"overlong": config.reward.overlong_penalty}
        return Composition(kind="normalized", recipe=recipe, weights=weights)
    kind: Kind = "product" if recipe.combine == "product" else "sum"
    if recipe.combine == "minimum":
        kind = "minimum"
    return Composition(kind=kind, recipe=recipe, weights=PENALTIES)


def _unknown(tree: Mapping[str, Any]) -> Composition:
    rules = tree["reward"]["recipe"]["rules"]
    weights = {rule["name"]: float(rule.get("weight", 1.0)) for rule in rules}
    right = tree["reward"].get("right_from")  # of an imported run
    return Composition(
        kind="sum", recipe=None, weights=PENALTIES | weights, right=right
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleContribution:
    """One rule that counts, over the watched steps."""

    rule: str
    weight: float
    share: float | None  # of the variance within groups; None: there was none
    differs: float  # share of the groups within which it differs
    part: float  # of the mean reward


def judge(
    rules: Sequence[RuleContribution], *, num_groups: int, num_steps: int
) -> dict[str, list[str]]:
    """Whether a rule dominates the reward, and hides others by that.

    A rule dominates where it supplies more than 90 % of the variance of rewards within
    groups, which updates follow. That is as it should be where it is the task itself
    and the others are small beside it, or are met by all completions alike: a fact.

    It is worth a warning where it drowns another rule, one that has something to say
    and is not heard. Rule r with weight w differs within the share d of the groups. If
    scores were spread alike where they differ, it would supply

        asked(r) = w² d / Σ w² d     over the rules that count.

    r is drowned where d is above 10 % and it supplies less than half of asked(r). Where
    rewards are a product or a minimum, weights ask for nothing: w = 1.

    A rule that gives all completions of each group the same teaches nothing. Where it
    gives them something that is a fact, such as a format that is learnt; where it gives
    them nothing it cannot be learnt, which is a warning.

    Sentences: warnings, and plain facts. Of a single rule there are none.
    """
    found: dict[str, list[str]] = {"warnings": [], "facts": []}
    if len(rules) < 2 or not num_groups:
        return found
    ruling = next((s for s in rules if (s.share or 0) > DOMINANT), None)
    if ruling is not None:
        drowned = [s for s in rules if s is not ruling and _drowned(s, rules)]
        kind = "warnings" if drowned else "facts"
        found[kind].append(_say_dominance(ruling, drowned, num_steps))
    silent = [s for s in rules if not s.differs]
    for rule in silent:
        kind = "facts" if rule.part else "warnings"
        found[kind].append(_say_silence(rule, num_groups, num_steps))
    return found


def _asked(rule: RuleContribution, among: Sequence[RuleContribution]) -> float:
    total = sum(s.weight**2 * s.differs for s in among)
    return rule.weight**2 * rule.differs / total if total else 0.0


def _drowned(rule: RuleContribution, among: Sequence[RuleContribution]) -> bool:
    has_say = rule.differs > DIFFERS
    return has_say and (rule.share or 0) < HEARD * _asked(rule, among)


def _say_dominance(
    ruling: RuleContribution, drowned: Sequence[RuleContribution], num_steps: int
) -> str:
    message = (
        f"{ruling.rule} supplies {100 * (ruling.share or 0):.0f} % of the variance of "
        f"rewards within groups over the last {num_steps} steps."
    )
    if not drowned:
        return (
            f"{message} It hides no other rule: they differ in few groups, or count as "
            "little as their weights say."
        )
    hidden = " and ".join(
        f"{s.rule}, which differs within {100 * s.differs:.0f} % of the groups but "
        f"supplies {100 * (s.share or 0):.0f} %"
        for s in drowned
    )
    return (
        f"{message} It hides {hidden}, less than half of what its weight asks for. If "
        "that is not meant, change the weights or the range of the scores."
    )


def _say_silence(rule: RuleContribution, num_groups: int, num_steps: int) -> str:
    what = "something, the same" if rule.part else "nothing"
    message = (
        f"{rule.rule} gave {what} to all completions in each of the "
        f"{num_groups:,} groups of the last {num_steps} steps"
    )
    if rule.part:
        return f"{message}: nothing is left to learn from it."
    return (
        f"{message}, so it cannot be learnt. See in a group why: the prompt may not "
        "ask for it, or the rule may never match."
    )
