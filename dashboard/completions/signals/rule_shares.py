"""Each rule's share of a step's mean reward, and of its reward variance.

Updates follow the differences of the advantages A within a group. The share of a rule
r with parts p (weight × score) in a group g of rewards R is

    share(r, g) = Cov(p, R) / Var(R),

which adds up to 1 over the rules if the parts add up to R. The rest is the part without
a rule, such as a reward clip. A step's share is the mean over its groups, weighted by
Σ (A − mean A)².

normalized: the parts are w · (score − mean) / std within the group, and R is their sum.
product, minimum: parts do not add up, so the share is Cov² / (Var(p) · Var(R)), the
squared correlation with the reward, divided by the sum over the rules.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.composition import (
    Composition,
    Compositions,
    RuleContribution,
    judge,
    read_compositions,
)
from dashboard.completions.signals.records import (
    RULE,
    RULE_HEAD,
    RULE_PART,
    Numbers,
    Span,
    StepGroup,
    find_span,
    read_stretches,
    shorten,
    unpack,
)
from dashboard.runs.charts.chart import clip_all
from dashboard.runs.models import Run

WATCHED_STEPS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Sums over a step's groups, so that steps add up; arrays are by rule."""

    num_scored: int  # completions with a reward
    reward_sum: float
    weight: float  # Σ over trained groups of Σ (A − mean A)²
    num_groups: int  # with two scored completions or more
    part_sum: Numbers
    share_sum: Numbers  # each group's share × its weight
    num_varied: Numbers  # groups within which the rule's part differs


def share(
    groups: Sequence[StepGroup],
    names: Sequence[str],
    composition: Composition,
    step: int,
) -> Shares:
    rules = [scored for group in groups for scored in group.rules]
    rewards = _clipped(r for g in groups for r in g.rewards)
    advantages = _clipped(a for g in groups for a in g.advantages)
    parts = clip_all(composition.parts(rules, names, step))
    # Groups lie one behind another; of each only what has a reward is compared.
    owner = np.repeat(np.arange(len(groups)), [len(g.rewards) for g in groups])
    is_scored = np.isfinite(rewards)
    rewards, advantages = rewards[is_scored], advantages[is_scored]
    parts, owner = parts[is_scored], owner[is_scored]
    within = _Within(owner, len(groups))

    if composition.kind == "normalized":
        spread = within.centre(parts)
        size = np.abs(composition.weights_at(step, names))
        counted = size * _divide(spread, within.deviation(spread), where_0=0.0)
        by_group = _of_a_sum(within, counted, counted.sum(axis=1))
    elif composition.kind == "sum":
        spread = within.centre(np.nan_to_num(parts))
        by_group = _of_a_sum(within, spread, within.centre(rewards))
    else:
        spread = within.centre(np.nan_to_num(parts))
        total = within.centre(rewards)
        covariance = within.sums(spread * total[:, None])
        variances = within.sums(spread**2) * within.sums(total**2)[:, None]
        squared = _divide(covariance**2, variances, where_0=0.0)
        by_group = _divide(squared, squared.sum(axis=1, keepdims=True), where_0=np.nan)

    is_trained = [group.is_trained for group in groups]
    taught = np.where(is_trained, within.squares(advantages), 0.0)
    # A group whose rewards are tied has no shares to give, whatever its advantages.
    weights = np.where(np.isfinite(by_group).all(axis=1), taught, 0.0)
    return Shares(
        num_scored=len(rewards),
        reward_sum=float(rewards.sum()),
        weight=float(weights.sum()),
        num_groups=int((within.sizes > 1).sum()),
        part_sum=np.nansum(parts, axis=0),
        share_sum=weights @ np.nan_to_num(by_group),
        num_varied=(within.sums(spread**2) > 0).sum(axis=0).astype(np.float64),
    )


def _clipped(values: Iterable[float | None]) -> Numbers:
    return clip_all(np.array(list(values), dtype=np.float64))


class _Within:
    """Sums and centring within groups; value i belongs to group owner[i]."""

    def __init__(self, owner: NDArray[np.int64], num_groups: int) -> None:
        self._owner = owner
        self._num_groups = num_groups
        self.sizes = np.bincount(owner, minlength=num_groups)

    def sums(self, values: Numbers) -> Numbers:
        """[completions, …] to [groups, …]."""
        columns = values.reshape(len(values), math.prod(values.shape[1:]))
        summed = np.empty((self._num_groups, columns.shape[1]))
        for index, column in enumerate(columns.T):
            summed[:, index] = np.bincount(
                self._owner, column, minlength=self._num_groups
            )
        return summed.reshape(self._num_groups, *values.shape[1:])

    def centre(self, values: Numbers) -> Numbers:
        """Minus the group's mean without NaN; NaN becomes 0.

        Exactly 0 if all values of a group are equal, in spite of rounding.
        """
        if not len(values):
            return values
        counts = self.sums(np.isfinite(values).astype(np.float64))
        means = self.sums(np.nan_to_num(values)) / np.maximum(counts, 1)
        first = np.r_[True, self._owner[1:] != self._owner[:-1]].nonzero()[0]
        highest = np.fmax.reduceat(values, first)
        is_flat = np.ones(means.shape, dtype=bool)
        is_flat[self._owner[first]] = ~(highest > np.fmin.reduceat(values, first))
        return np.nan_to_num(
            np.where(is_flat[self._owner], 0.0, values - means[self._owner])
        )

    def squares(self, values: Numbers) -> Numbers:
        return self.sums(self.centre(values) ** 2)

    def deviation(self, centred: Numbers) -> Numbers:
        """√Σx² of each completion's group: its std up to a factor."""
        return np.sqrt(self.sums(centred**2))[self._owner]


def _of_a_sum(within: _Within, parts: Numbers, total: Numbers) -> Numbers:
    """Cov(part, total) / Var(total), [groups, rules]; NaN where it does not vary."""
    return _divide(
        within.sums(parts * total[:, None]),
        within.sums(total**2)[:, None],
        where_0=np.nan,
    )


def _divide(values: Numbers, by: Numbers, *, where_0: float) -> Numbers:
    by = np.broadcast_to(by, values.shape)
    divided = np.full(values.shape, where_0)
    np.divide(values, by, out=divided, where=by > 0)
    return divided


@dataclass(slots=True)
class Sums:
    """Shares of a stretch before they are divided; see Shares."""

    num_scored: float = 0.0
    reward_sum: float = 0.0
    weight: float = 0.0
    num_groups: float = 0.0
    part_sum: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    share_sum: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_varied: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, rules: Sequence[str], packed: bytes) -> None:
        width = len(RULE_HEAD) + len(RULE_PART) * len(rules)
        sums = unpack(packed, RULE).reshape(-1, width).sum(axis=0).tolist()
        for name, value in zip(RULE_HEAD, sums, strict=False):
            setattr(self, name, getattr(self, name) + value)
        parts = iter(sums[len(RULE_HEAD) :])
        for rule in rules:
            for name in RULE_PART:
                getattr(self, name)[rule] += next(parts)

    def variance_share(self, rule: str) -> float | None:
        return self.share_sum[rule] / self.weight if self.weight else None

    def mean_part(self, rule: str) -> float | None:
        return self.part_sum[rule] / self.num_scored if self.num_scored else None


def read_rule_shares(
    run: Run, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Three queries. Lists are by column; `rest` is the part without a rule.

    part[rule]: part of the mean reward; mean[rule]: the same over the sum of absolute
    parts; variance[rule]: share of the reward variance (see above); warnings and facts:
    composition.judge.
    """
    span = find_span(run, first=first, last=last)
    columns = _read(run, span) if span else {}
    sums = list(columns.values())
    names = list(dict.fromkeys(name for stretch in sums for name in stretch.part_sum))
    parts = {name: [stretch.mean_part(name) for stretch in sums] for name in names}
    sizes = [
        sum(abs(part) for part in by_rule if part is not None)
        for by_rule in zip(*parts.values(), strict=True)
    ]
    return {
        "kind": _compositions(run).at(span.last if span else 0).kind,
        "rules": names,
        "columns": [span.column(index) for index in columns if span],
        "reward": [_ratio(stretch.reward_sum, stretch.num_scored) for stretch in sums],
        "part": {name: [_to_6(part) for part in parts[name]] for name in names},
        "mean": {
            name: [_ratio(p, s) for p, s in zip(parts[name], sizes, strict=True)]
            for name in names
        },
        "variance": {
            name: [_to_6(stretch.variance_share(name)) for stretch in sums]
            for name in names
        },
        "rest": [
            _to_6(
                1 - sum(stretch.share_sum[name] for name in names) / stretch.weight
                if stretch.weight
                else None
            )
            for stretch in sums
        ],
        **_verdict(run),
    }


def _read(run: Run, span: Span) -> dict[int, Sums]:
    by_stretch: dict[int, Sums] = defaultdict(Sums)
    for stretch in read_stretches(run, span, ["rules"], by_rules=True):
        if stretch.columns[0]:
            by_stretch[stretch.index].add(stretch.rule_names, stretch.columns[0])
    return dict(sorted(by_stretch.items()))


def _compositions(run: Run) -> Compositions:
    return read_compositions(json.dumps(run.config))


_to_6 = partial(shorten, num_digits=6)


def _ratio(value: float | None, by: float) -> float | None:
    return _to_6(value / by) if by and value is not None else None


def _verdict(run: Run) -> dict[str, list[str]]:
    """Judge the newest WATCHED_STEPS with groups, if there are as many."""
    steps = StepRollup.objects.filter(run=run, superseded_by=None).exclude(rules=b"")
    names = ("step", "rule_names", "rules")
    newest = list(steps.order_by("-step").values_list(*names)[:WATCHED_STEPS])
    if len(newest) < WATCHED_STEPS:
        return {"warnings": [], "facts": []}
    sums = Sums()
    for _, rule_names, packed in newest:
        sums.add(rule_names, packed)
    step, rules, _ = newest[0]
    composition = _compositions(run).at(step)
    weights = composition.weights_at(step, rules).tolist()
    is_weighed = composition.kind in ("sum", "normalized")
    return judge(
        [
            RuleContribution(
                rule=rule,
                weight=abs(weight) if is_weighed else 1.0,
                share=sums.variance_share(rule),
                differs=_ratio(sums.num_varied[rule], sums.num_groups) or 0.0,
                part=sums.mean_part(rule) or 0.0,
            )
            for rule, weight in zip(rules, weights, strict=True)
            if weight
        ],
        num_groups=round(sums.num_groups),
        num_steps=WATCHED_STEPS,
    )
