"""What a question's labels say: shares, kinds, agreement with people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.analysis.questions.estimates import (
    Draws,
    Estimate,
    Judged,
    Share,
    draw,
    estimate,
)
from dashboard.analysis.questions.models import CompletionLabel, HandLabel, Question

MOST_KINDS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelShare:
    label: str
    judge: Share  # as the judge sees it
    corrected: Share | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    estimate: Estimate
    shares: list[LabelShare]
    num_labelled: int
    num_by_hand: int  # completions that people labelled
    num_undecided: int
    num_unreadable: int
    num_lost_quotes: int
    agreement: float | None  # κ of two people
    kinds: list[tuple[str, int]]  # of the first label, the most frequent first
    steps: dict[int, tuple[int, int]]  # of each window: first and last


def read_result(question: Question) -> Result | None:
    """Sum up the labels; None while nothing is labelled. Two queries."""
    places = list(question.sample.order_by("rank"))
    labelled = [place for place in places if place.label]
    if not labelled:
        return None
    hands = read_hands(question)
    judged = judged_of(question, labelled, hands)
    by_window: dict[int, list[int]] = {}
    for place in labelled:
        by_window.setdefault(place.window, []).append(place.step)
    asked_for = question.names[0]
    kinds = Counter(
        " ".join(place.kind.lower().strip(".").split())
        for place in labelled
        if place.label == asked_for and place.kind
    )
    found = estimate(judged, seed=question.seed)
    truth: Sequence[Share | None] = found.truth or [None] * len(question.names)
    return Result(
        estimate=found,
        shares=[
            LabelShare(label=name, judge=share, corrected=corrected)
            for name, share, corrected in zip(
                question.names, found.judge, truth, strict=True
            )
        ],
        num_labelled=len(labelled),
        num_by_hand=int((judged.hand >= 0).sum()),
        num_undecided=sum(not any(each.label for each in of) for of in hands.values()),
        num_unreadable=sum(bool(p.problem and p.num_tokens_in) for p in places),
        num_lost_quotes=sum(place.has_lost_quote for place in labelled),
        agreement=agreement(question.names, hands),
        kinds=kinds.most_common(MOST_KINDS),
        steps={window: (min(s), max(s)) for window, s in by_window.items()},
    )


def read_draws(question: Question) -> Draws | None:
    """Return the draws of a question, to compare it with the same one of another
    run.
    """
    labelled = list(question.sample.exclude(label="").order_by("rank"))
    if not labelled:
        return None
    judged = judged_of(question, labelled, read_hands(question))
    return draw(judged, seed=question.pk)  # each question its own draws


def read_hands(question: Question) -> dict[int, list[HandLabel]]:
    """Return labels of people by place, the first one first."""
    hands: dict[int, list[HandLabel]] = {}
    for hand in HandLabel.objects.filter(of__question=question).order_by("pk"):
        hands.setdefault(hand.of_id, []).append(hand)
    return hands


def judged_of(
    question: Question,
    labelled: list[CompletionLabel],
    hands: dict[int, list[HandLabel]],
) -> Judged:
    """Return arrays of the labels; the first person's label of a place counts."""
    number = {name: n for n, name in enumerate(question.names)}
    decided = {
        pk: next((hand.label for hand in of if hand.label), "")
        for pk, of in hands.items()
    }
    return Judged(
        label=np.array([number[place.label] for place in labelled]),
        hand=np.array([number.get(decided.get(p.pk, ""), -1) for p in labelled]),
        group=np.array([place.group_id for place in labelled]),
        window=np.array([place.window for place in labelled]),
        weight=np.array([place.weight for place in labelled]),
        num_labels=len(number),
    )


def agreement(names: list[str], hands: dict[int, list[HandLabel]]) -> float | None:
    """Return Cohen's κ of the first two people on the places that both decided; None
    without any.
    """
    pairs = [
        decided[:2]
        for of in hands.values()
        if len(decided := [hand.label for hand in of if hand.label]) > 1
    ]
    if not pairs:
        return None
    observed = sum(one == other for one, other in pairs) / len(pairs)
    shares = [
        [sum(pair[person] == name for pair in pairs) / len(pairs) for name in names]
        for person in (0, 1)
    ]
    expected = sum(one * other for one, other in zip(*shares, strict=True))
    return (observed - expected) / (1 - expected) if expected < 1 else 1.0
