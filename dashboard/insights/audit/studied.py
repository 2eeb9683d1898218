"""The signals that only completions tell, of a sample of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from dashboard.insights.audit.pairs import disagreement, pairs_of, reward_by_length
from dashboard.insights.audit.sampled import SampledGroup, choose_steps, read_groups
from dashboard.insights.audit.series import Series
from dashboard.insights.audit.words import Text, Vocabulary, repetition, shared
from dashboard.runs.models import Run
from dashboard.samples.rewards import rule_names, rule_weights
from dashboard.samples.search.annotated import find_near_duplicates

SECONDS = 1.5

Measure = Callable[[list[SampledGroup], list[Text]], float]
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
    """Two queries, and one for each step that there is time."""
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
