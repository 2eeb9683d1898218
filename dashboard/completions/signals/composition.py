"""How the rules of a run combine into the reward, and the parts of each."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from dashboard.completions.rewards import PENALTIES
from dashboard.completions.signals.records import Numbers
from trainer.config import RunConfig
from trainer.rewards.rules.rightness import AnswerReader
from trainer.rewards.scoring import Correctness, correctness_of, parts_of
from trainer.rewards.spec import Recipe, answer_reader

# sum: parts add up to the reward. normalized: each rule has its own advantages, which
# add up. product, minimum: parts do not add up.
Kind = Literal["sum", "normalized", "product", "minimum"]

DOMINANT = 0.9
MIN_DIFFERING = 0.1  # share of the groups: below, a rule has hardly any signal
SUPPRESSED = 0.5  # share of what the weight implies


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The composition in one phase of a run; without a recipe if a rule no longer
    exists.
    """

    kind: Kind
    recipe: Recipe | None
    weights: Mapping[str, float]  # of names that are not in the recipe
    right_from: float | None = None  # least reward of a correct one without a recipe

    def parts(
        self,
        rules: Sequence[Mapping[str, float | None]],
        names: Sequence[str],
        step: int,
    ) -> Numbers:
        """Weight × score that counts, [completions, names]; NaN where there is none."""
        if self.recipe is not None and not self._is_plain:
            matrix = np.full((len(rules), len(names)), np.nan)
            for row, scored in zip(matrix, rules, strict=True):
                parts = parts_of(self.recipe, scored, step=step)
                for column, name in enumerate(names):
                    if name in parts:
                        value = parts[name].value
                    else:
                        score = scored.get(name)
                        weight = self.weights.get(name, 1.0)
                        value = None if score is None else weight * score
                    row[column] = np.nan if value is None else value
            return matrix
        matrix = np.array(
            [[scored.get(name) for name in names] for scored in rules], dtype=np.float64
        ).reshape(len(rules), len(names))
        return matrix * self.weights_at(step, names)

    def weights_at(self, step: int, names: Sequence[str]) -> Numbers:
        weights = dict(self.weights)
        if self.recipe is not None:
            weights |= {rule.name: rule.weight_at(step) for rule in self.recipe.rules}
        return np.array([weights.get(name, 1.0) for name in names])

    def correctness_at(self, step: int) -> Correctness:
        if self.recipe is None:
            return Correctness(least_reward=self.right_from)
        return correctness_of(self.recipe, step=step)

    @cached_property
    def read_answer(self) -> AnswerReader | None:
        """The reader of answers; None if no rule reads one that two completions could
        share.
        """
        return None if self.recipe is None else answer_reader(self.recipe)

    @property
    def _is_plain(self) -> bool:
        assert self.recipe is not None
        return all(
            rule.clip is None and rule.only_if is None for rule in self.recipe.rules
        )


@dataclass(frozen=True)
class Compositions:
    """The compositions of a whole run, by the first step of each phase."""

    first_steps: tuple[int, ...]
    phases: tuple[Composition, ...]

    def at(self, step: int) -> Composition:
        return self.phases[max(0, bisect_right(self.first_steps, step) - 1)]


# Most batches are of a few runs, whose configs were frozen at launch.
@lru_cache(maxsize=64)
def read_compositions(config: str) -> Compositions:
    """Read a run's config, as JSON text."""
    tree = json.loads(config)
    try:
        phases = RunConfig.model_validate(tree).phase_configs
    except ValueError:
        weights = {
            rule["name"]: float(rule.get("weight", 1.0))
            for rule in tree["reward"]["recipe"]["rules"]
        }
        unknown = Composition(
            kind="sum",
            recipe=None,
            weights=PENALTIES | weights,
            right_from=tree["reward"].get("right_from"),  # of an imported run
        )
        return Compositions((1,), (unknown,))
    return Compositions(
        tuple(phase.first_step for phase in phases),
        tuple(_composition(phase.config) for phase in phases),
    )


def _composition(config: RunConfig) -> Composition:
    recipe = config.reward.recipe
    if config.compares_rules:
        return Composition(
            kind="normalized",
            recipe=recipe,
            weights={"overlong": config.reward.overlong_penalty},
        )
    kind: Kind = "product" if recipe.combine == "product" else "sum"
    if recipe.combine == "minimum":
        kind = "minimum"
    return Composition(kind=kind, recipe=recipe, weights=PENALTIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleContribution:
    """A rule that counts, over the watched steps."""

    rule: str
    weight: float
    share: float | None  # of the variance within groups; None: there was none
    differs: float  # share of the groups within which it differs
    part: float  # of the mean reward


def judge(
    rules: Sequence[RuleContribution], *, num_groups: int, num_steps: int
) -> dict[str, list[str]]:
    """Warnings and facts about rules that dominate the reward or never differ.

    A rule dominates with more than 90% of the reward variance within groups, which
    updates follow. That is a fact, as it may be the task itself. It is a warning if it
    suppresses another rule. Rule r with weight w differs within the share d of the
    groups; with equal score variance its share would be

        expected(r) = w² d / Σ w² d     over the rules that count.

    r is suppressed if d is above 10% and its share is below half of expected(r). For a
    product or a minimum, w = 1.

    A rule that is constant within each group gives no signal: a fact if its part is not
    0, such as a format the model has learned; else a warning. One rule has neither.
    """
    messages: dict[str, list[str]] = {"warnings": [], "facts": []}
    if len(rules) < 2 or not num_groups:
        return messages
    dominant = next((s for s in rules if (s.share or 0) > DOMINANT), None)
    if dominant is not None:
        others = [s for s in rules if s is not dominant and _is_suppressed(s, rules)]
        kind = "warnings" if others else "facts"
        messages[kind].append(_describe_dominance(dominant, others, num_steps))
    for rule in [s for s in rules if not s.differs]:
        kind = "facts" if rule.part else "warnings"
        messages[kind].append(_describe_constant(rule, num_groups, num_steps))
    return messages


def _is_suppressed(rule: RuleContribution, among: Sequence[RuleContribution]) -> bool:
    has_signal = rule.differs > MIN_DIFFERING
    total = sum(s.weight**2 * s.differs for s in among)
    expected = rule.weight**2 * rule.differs / total if total else 0.0
    return has_signal and (rule.share or 0) < SUPPRESSED * expected


def _describe_dominance(
    dominant: RuleContribution, suppressed: Sequence[RuleContribution], num_steps: int
) -> str:
    """Describe it without numbers: a share can be negative, and another one then above
    100%.
    """
    message = (
        f"{dominant.rule} decides almost all of the reward in the last {num_steps} "
        "steps."
    )
    for rule in suppressed:
        if (rule.share or 0) < 0:
            message += f" {rule.rule} pulls the other way."
        else:
            message += (
                f" {rule.rule} decides less than half of what its weight implies."
            )
    advice = " If unintended, change the weights or the score ranges."
    return message + advice if suppressed else message


def _describe_constant(rule: RuleContribution, num_groups: int, num_steps: int) -> str:
    score = "the same score" if rule.part else "0"
    message = (
        f"{rule.rule} gave {score} to all completions of each of the {num_groups:,} "
        f"groups in the last {num_steps} steps"
    )
    if rule.part:
        return f"{message}: it gives no training signal."
    return (
        f"{message}, so the model cannot learn it. Open a group to see why: the prompt "
        "may not request it, or the rule may never match."
    )
