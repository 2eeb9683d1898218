"""What a sample of completions shows: repetition, near-duplicates, and what is paid."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dashboard.analysis.audit.changes import Change, compare_ends
from dashboard.analysis.audit.texts import (
    SampledGroup,
    Text,
    Vocabulary,
    choose_steps,
    read_groups,
)
from dashboard.analysis.statistics import NORMAL, Array, Indices, subtract
from dashboard.completions.flags import find_near_duplicates
from dashboard.runs.charts.series import Series
from dashboard.runs.models import Run

SECONDS = 1.5
MOST_FEATURES = 40  # pieces that are counted, of those in the most texts
PAID = 0.8  # correlation with the reward within groups, the interval's lower end
FAR = 1.0  # of the completions' standard deviation at the start


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A number that a text has whatever its prompt, and how far the reward follows it.

    correlation: Pearson's, of both minus the means of their group, over groups whose
    rewards differ; low: of its size, the lower end of the 95% interval.
    """

    name: str  # length, repetition, or a piece of text
    correlation: float
    low: float
    change: Change
    spread: float  # of completions in the first quarter of the steps

    @property
    def title(self) -> str:
        is_piece = self.name not in ("length", "repetition")
        return f"the number of “{self.name}”" if is_piece else self.name

    @property
    def is_gamed(self) -> bool:
        """The feature decides the reward and has moved far, the way that is paid."""
        moved = math.copysign(1, self.correlation) * self.change.difference
        is_far = self.change.is_clear and moved >= FAR * self.spread
        return self.low >= PAID and is_far


@dataclass(kw_only=True)
class Study:
    """`num_chosen` steps of `num_between` were to be read; there was time for some."""

    num_chosen: int = 0
    num_between: int = 0
    groups: dict[int, list[SampledGroup]] = field(default_factory=dict)
    texts: dict[int, list[list[Text]]] = field(default_factory=dict)  # by group
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    _found: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.texts)

    @property
    def num_completions(self) -> int:
        return sum(len(own) for groups in self.texts.values() for own in groups)

    def series(self, key: str) -> Series:
        return rising(self._found.get(key, {}))

    def add(self, step: int, groups: list[SampledGroup]) -> None:
        groups = [group for group in groups if group.texts]
        texts = [[self.vocabulary.read(t) for t in group.texts] for group in groups]
        self.groups[step], self.texts[step] = groups, texts
        for key, value in {
            "duplicates": near_duplicates(groups),
            "repetition": repetition([text for own in texts for text in own]),
        }.items():
            self._found.setdefault(key, {})[step] = value

    def features(self) -> list[Feature]:
        """Rank what decides the reward. Empty: too few steps, or no rewards."""
        counted = self._common_pieces()
        pieces = self.vocabulary.pieces
        names = ["length", "repetition", *(pieces[piece] for piece in counted)]
        # The others are counted together, in a last column.
        columns = np.full(len(pieces), len(counted))
        columns[counted] = np.arange(len(counted))
        rewards, values = [np.empty(0)], [np.empty((0, len(names)))]
        means: dict[int, Array] = {}
        early: list[Array] = []
        num_groups = 0
        for step in sorted(step for step, groups in self.texts.items() if groups):
            own = [_measure(t, columns, len(counted)) for t in self.texts[step]]
            means[step] = np.concatenate(own).mean(axis=0)
            if len(means) <= max(1, self.num_steps // 4):
                early += own
            for group, measured in zip(self.groups[step], own, strict=True):
                group_rewards = numbers(group.rewards)
                is_scored = np.isfinite(group_rewards)
                # Groups of ties do not tell what is paid.
                if is_scored.any() and np.ptp(group_rewards[is_scored]) > 0:
                    rewards.append(_centre(group_rewards[is_scored]))
                    values.append(_centre(measured[is_scored]))
                    num_groups += 1
        if not early:
            return []
        reward, value = _scale(np.concatenate(rewards)), np.concatenate(values)
        bottom = np.sqrt((value**2).sum(axis=0) * (reward @ reward))
        correlations = (value * reward[:, None]).sum(axis=0) / np.where(
            bottom, bottom, np.inf
        )
        spread = np.concatenate(early).std(axis=0)
        features = [
            Feature(
                name=name,
                correlation=float(correlations[index]),
                low=_low(abs(float(correlations[index])), len(reward) - num_groups),
                change=change,
                spread=float(spread[index]),
            )
            for index, name in enumerate(names)
            if (change := compare_ends(rising({s: m[index] for s, m in means.items()})))
        ]
        return sorted(features, key=lambda feature: -feature.low)

    def _common_pieces(self) -> list[int]:
        counts: Counter[int] = Counter()
        for groups in self.texts.values():
            for text in (text for own in groups for text in own):
                counts.update(set(text.pieces.tolist()))
        return [piece for piece, _ in counts.most_common(MOST_FEATURES)]


def study(run: Run, *, seconds: float = SECONDS) -> Study:
    """Two queries, and one for each step within the time limit."""
    chosen = choose_steps(run)
    study_ = Study(num_chosen=len(chosen.steps), num_between=chosen.num_between)
    until = time.monotonic() + seconds
    for step in chosen.steps:
        study_.add(step, read_groups(run, step))
        if time.monotonic() > until:
            break
    return study_


def numbers(values: Sequence[float | int | None]) -> Array:
    return np.array([np.nan if v is None else v for v in values], np.float64)


def repetition(texts: Iterable[Text]) -> float:
    """Average over texts. NaN: none has four pieces."""
    shares = [text.repeated for text in texts if not math.isnan(text.repeated)]
    return float(np.mean(shares)) if shares else np.nan


def near_duplicates(groups: Iterable[SampledGroup]) -> float:
    """Measure the share of completions nearly like another one of their group."""
    pairs = [near for group in groups for near in find_near_duplicates(group.texts)]
    return float(np.mean(pairs)) if pairs else np.nan


def rising(values: dict[int, float]) -> Series:
    steps = np.array(sorted(values), np.int64)
    return Series.known(steps, np.array([values[step] for step in steps.tolist()]))


def _measure(texts: Sequence[Text], columns: Indices, num: int) -> Array:
    """Length, repetition and counts of `num` pieces by column, [texts, features]."""
    ends = [(len(t.pieces), np.nan_to_num(t.repeated)) for t in texts]
    counts = [np.bincount(columns[t.pieces], minlength=num + 1)[:num] for t in texts]
    return np.hstack([np.array(ends, np.float64), np.array(counts)])


def _low(correlation: float, df: int) -> float:
    """Compute the lower end of its 95% interval, by Fisher's z."""
    z = math.atanh(min(correlation, 1 - 1e-9))
    return math.tanh(z - NORMAL.inv_cdf(0.975) / math.sqrt(max(df - 2, 1)))


def _centre(values: Array) -> Array:
    """Values minus their mean; exactly 0 for equal values, despite rounding."""
    return subtract(values, np.broadcast_to(values.mean(axis=0), values.shape))


def _scale(values: Array) -> Array:
    """Divided by the largest: the square of a number above 1e154 overflows."""
    largest = np.abs(values).max(initial=0.0)
    return values / largest if largest > 0 else values
