"""Each rule's share over the steps, and what the newest of them show."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.runs.models import Run
from dashboard.samples.models import StepRollup
from dashboard.samples.signals.columns import Span, find_span, read_stretches
from dashboard.samples.signals.composition import Compositions, read_compositions
from dashboard.samples.signals.dominance import Standing, judge
from dashboard.samples.signals.records import RULE, RULE_HEAD, RULE_PART, unpack

WATCHED_STEPS = 20


@dataclass(slots=True)
class Sums:
    """Shares of a stretch before they are divided; see shares.py."""

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
    """Three queries. Lists are by column; `rest` is what the rules leave over.

    part[rule]: of the mean reward, in reward; mean[rule]: that over the sum of all
    parts' sizes; variance[rule]: the share in what is learnt from (shares.py);
    warnings and facts: dominance.py.
    """
    span = find_span(run, first=first, last=last)
    columns = _read(run, span) if span else {}
    sums = list(columns.values())
    names = list(dict.fromkeys(name for each in sums for name in each.part_sum))
    parts = {name: [each.mean_part(name) for each in sums] for name in names}
    sizes = [_total_size(by_rule) for by_rule in zip(*parts.values(), strict=True)]
    return {
        "kind": _compositions(run).at(span.last if span else 0).kind,
        "rules": names,
        "columns": [
            {"first": span.ends(place)[0], "last": span.ends(place)[1]}
            for place in columns
            if span
        ],
        "reward": [_ratio(each.reward_sum, each.num_scored) for each in sums],
        "part": {name: [_short(part) for part in parts[name]] for name in names},
        "mean": {
            name: [_ratio(p, s) for p, s in zip(parts[name], sizes, strict=True)]
            for name in names
        },
        "variance": {
            name: [_short(each.variance_share(name)) for each in sums] for name in names
        },
        "rest": [_short(_rest(each, names)) for each in sums],
        **_verdict(run),
    }


def _read(run: Run, span: Span) -> dict[int, Sums]:
    found: dict[int, Sums] = defaultdict(Sums)
    for stretch in read_stretches(run, span, ["rules"], by_rules=True):
        if stretch.columns[0]:
            found[stretch.place].add(stretch.rule_names, stretch.columns[0])
    return dict(sorted(found.items()))


def _compositions(run: Run) -> Compositions:
    return read_compositions(json.dumps(run.config))


def _total_size(parts: Iterable[float | None]) -> float:
    return sum(abs(part) for part in parts if part is not None)


def _rest(sums: Sums, names: Sequence[str]) -> float | None:
    if not sums.weight:
        return None
    return 1 - sum(sums.share_sum[name] for name in names) / sums.weight


def _ratio(value: float | None, by: float) -> float | None:
    return _short(value / by) if by and value is not None else None


def _short(value: float | None) -> float | None:
    known = value is not None and math.isfinite(value)
    return float(f"{value:.6g}") if known else None


def _verdict(run: Run) -> dict[str, list[str]]:
    """Of the newest WATCHED_STEPS with groups, if there are as many."""
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
            Standing(
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
