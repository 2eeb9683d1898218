"""Audit signals computed from a sample of completions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from dashboard.analysis.audit.change_points import Series
from dashboard.analysis.audit.texts import (
    SampledGroup,
    Text,
    Vocabulary,
    choose_steps,
    read_groups,
    repetition,
    shared,
)
from dashboard.analysis.statistics import Array, subtract
from dashboard.runs.models import Run
from dashboard.samples.flags import find_near_duplicates
from dashboard.samples.rewards import rule_names, rule_weights

MOST_RULES = 8
SECONDS = 1.5
Measure = Callable[[list[SampledGroup], list[Text]], float]


def numbers(values: Sequence[float | int | None]) -> Array:
    return np.array([np.nan if v is None else v for v in values], np.float64)


def disagreement(groups: Sequence[SampledGroup], rule: str, other: str) -> float:
    """The share of completion pairs that two rules order oppositely, of the pairs in a
    group that both rules order: D / (C + D), which is (1 - γ)/2 with Goodman and
    Kruskal's γ.

    NaN: there are no such pairs.
    """
    same = opposite = 0
    for group in groups:
        if rule not in group.scores or other not in group.scores:
            continue
        ours, theirs = (numbers(group.scores[name]) for name in (rule, other))
        signs = np.sign(_differences(ours)) * np.sign(_differences(theirs))
        same += int((signs > 0).sum())
        opposite += int((signs < 0).sum())
    return opposite / (same + opposite) if same + opposite else np.nan


def _differences(values: Array) -> Array:
    """Of each two completions, once."""
    return np.subtract.outer(values, values)[np.triu_indices(len(values), 1)]


def reward_by_length(groups: Sequence[SampledGroup]) -> float:
    """Pearson's correlation of reward and length within groups, over all of them:

        Σ (R - mean R)(L - mean L) / √(Σ (R - mean R)² · Σ (L - mean L)²),

    means being of the completion's own group, over groups whose rewards differ. NaN:
    one of them does not vary.
    """
    rewards, lengths = [np.empty(0)], [np.empty(0)]
    for group in groups:
        ours, theirs = numbers(group.rewards), numbers(group.lengths)
        known = np.isfinite(ours) & np.isfinite(theirs)
        # Groups of ties carry no information about length.
        if known.any() and np.ptp(ours[known]) > 0:
            rewards.append(_centre(ours[known]))
            lengths.append(_centre(theirs[known]))
    ours, theirs = _scale(np.concatenate(rewards)), _scale(np.concatenate(lengths))
    bottom = float(np.sqrt((ours @ ours) * (theirs @ theirs)))
    return float(ours @ theirs) / bottom if bottom > 0 else np.nan


def _centre(values: Array) -> Array:
    """Values minus their mean; exactly 0 for equal values, despite rounding."""
    return subtract(values, np.full(len(values), values.mean()))


def _scale(values: Array) -> Array:
    """Divided by the largest: the square of a number above 1e154 overflows."""
    largest = np.abs(values).max(initial=0.0)
    return values / largest if largest > 0 else values


def pairs_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each two of the first eight rules."""
    return list(combinations(names[:MOST_RULES], 2))


MEASURES: dict[str, Measure] = {
    "duplicates": lambda groups, texts: near_duplicates(groups),
    "shared": lambda groups, texts: shared(texts),
    "repetition": lambda groups, texts: repetition(texts),
    "by-length": lambda groups, texts: reward_by_length(groups),
}


@dataclass(kw_only=True)
class Study:
    """`num_chosen` steps of `num_between` were to be read; there was time for some."""

    num_chosen: int = 0
    num_between: int = 0
    num_completions: int = 0
    texts: dict[int, list[Text]] = field(default_factory=dict)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    _found: dict[str, dict[int, float]] = field(default_factory=dict)
    _disagree: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.texts)

    def series(self, key: str) -> Series:
        return _rising(self._found.get(key, {}))

    def disagreements(self) -> dict[tuple[str, str], Series]:
        return {pair: _rising(found) for pair, found in self._disagree.items()}

    def texts_of(self, first: int, last: int) -> list[Text]:
        """Of the steps that were read, from one to another."""
        steps = [step for step in sorted(self.texts) if first <= step <= last]
        return [text for step in steps for text in self.texts[step]]

    def add(
        self,
        step: int,
        groups: list[SampledGroup],
        rules: list[str],
        weights: dict[str, float],
    ) -> None:
        texts = self.vocabulary.read(groups)
        self.texts[step] = texts
        self.num_completions += len(texts)
        for key, measure in MEASURES.items():
            self._found.setdefault(key, {})[step] = measure(groups, texts)
        for pair in pairs_of(rules):
            found = disagreement(groups, *pair)
            # A penalty disagrees with a rule where it orders as that one does.
            turned = sum(weights.get(rule, 1.0) < 0 for rule in pair) == 1
            self._disagree.setdefault(pair, {})[step] = 1 - found if turned else found


def study(run: Run, *, seconds: float = SECONDS) -> Study:
    """Two queries, and one for each step within the time limit."""
    chosen = choose_steps(run)
    found = Study(num_chosen=len(chosen.steps), num_between=chosen.num_between)
    rules = rule_names(run)
    until = time.monotonic() + seconds
    for step in chosen.steps:
        found.add(step, read_groups(run, step), rules, rule_weights(run, step))
        if time.monotonic() > until:
            break
    return found


def near_duplicates(groups: Iterable[SampledGroup]) -> float:
    """The share of completions nearly like another one of their group."""
    found = [near for group in groups for near in find_near_duplicates(group.texts)]
    return float(np.mean(found)) if found else np.nan


def _rising(found: dict[int, float]) -> Series:
    steps = np.array(sorted(found), np.int64)
    return Series.known(steps, np.array([found[step] for step in steps.tolist()]))
