"""Completions of one prompt side by side, and what each rule gave on either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from django import forms

from dashboard.analysis.statistics import subtract
from dashboard.completions.forms import FilterForm
from dashboard.completions.models import Completion, Group
from dashboard.completions.turns import Row, pair_rows
from dashboard.runs.models import Run

RANK, SAMPLED = "rank", "sampled"
Scores = list[tuple[str, float | None]]
MOST = 2**31 - 1
SORTS = [
    ("prompt", "prompt number"),
    ("rate", "lowest win rate first"),
    ("-rate", "highest win rate first"),
    ("delta", "lowest difference first"),
    ("-delta", "highest difference first"),
]


def delta_of(ours: float | None, theirs: float | None) -> float | None:
    if ours is None or theirs is None:
        return None
    return float(subtract(np.array(ours), np.array(theirs)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    run: Run
    group: Group
    completions: list[Completion]  # as they were sampled

    @property
    def rewards(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(
            [c.reward for c in self.completions if c.reward is not None], np.float64
        )

    def rules_of(self, completion: Completion | None) -> Scores:
        if completion is None:
            return []
        return list(zip(self.group.rule_names, completion.rule_scores, strict=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    number: int  # from 1
    ours: Completion | None  # None: the other group is the larger one
    theirs: Completion | None
    our_rules: Scores
    their_rules: Scores

    @property
    def rows(self) -> list[Row]:
        """The turns, where one of the two is an episode."""
        return pair_rows(self.ours, self.theirs)

    @property
    def delta(self) -> float | None:
        if self.ours is None or self.theirs is None:
            return None
        return delta_of(self.ours.reward, self.theirs.reward)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleDelta:
    name: str
    means: tuple[float | None, float | None]

    @property
    def delta(self) -> float | None:
        return delta_of(*self.means)


def read_side(run: Run, prompt: int, step: int) -> Side | None:
    """Two queries."""
    group = (
        Group.objects.current().filter(run=run, prompt_index=prompt, step=step).first()
    )
    if group is None:
        return None
    return Side(run=run, group=group, completions=group.completions)


def align_pairs(ours: Side, theirs: Side, *, by: str) -> list[Pair]:
    """Pairs completions by reward or by sampling order."""
    sides = [_ordered(side.completions, by) for side in (ours, theirs)]
    return [
        Pair(
            number=number,
            ours=mine,
            theirs=its,
            our_rules=ours.rules_of(mine),
            their_rules=theirs.rules_of(its),
        )
        for number, (mine, its) in enumerate(zip_longest(*sides), start=1)
    ]


def compare_rules(ours: Side, theirs: Side) -> list[RuleDelta]:
    """Mean scores before weights; None where a recipe has no such rule."""
    means = [_rule_means(side) for side in (ours, theirs)]
    return [
        RuleDelta(name=name, means=(means[0].get(name), means[1].get(name)))
        for name in dict.fromkeys([*means[0], *means[1]])
    ]


def _ordered(completions: Sequence[Completion], by: str) -> list[Completion]:
    if by == SAMPLED:
        return list(completions)
    return sorted(completions, key=lambda c: (c.reward is None, -(c.reward or 0.0)))


def _rule_means(side: Side) -> dict[str, float | None]:
    scores: dict[str, list[float]] = {name: [] for name in side.group.rule_names}
    for completion in side.completions:
        for name, score in side.rules_of(completion):
            if score is not None:
                scores[name].append(score)
    return {n: fmean(own) if own else None for n, own in scores.items()}


def number() -> forms.IntegerField:
    return forms.IntegerField(required=False, min_value=0, max_value=MOST)


class PairForm(FilterForm):
    """The two runs, the prompt, and how its completions are read."""

    defaults: ClassVar[dict[str, Any]] = {
        "sort": "prompt",
        "align": RANK,
        "text": "diff",
        "page": 1,
    }

    a = number()
    b = number()
    prompt = number()
    step = number()
    sort = forms.ChoiceField(required=False, choices=SORTS)
    align = forms.ChoiceField(
        required=False,
        choices=[(RANK, "by reward"), (SAMPLED, "in sampling order")],
    )
    text = forms.ChoiceField(
        required=False,
        choices=[("diff", "differences highlighted"), ("plain", "plain")],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=MOST)
