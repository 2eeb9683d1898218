"""What a question's labels say: shares, kinds, agreement with people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated

import numpy as np
from django.db.models import Count, Max
from pydantic import Field

from dashboard.analysis.questions.estimates import Estimate, Judged, Share, estimate
from dashboard.analysis.questions.models import CompletionLabel, HandLabel, Question
from dashboard.analysis.questions.services import (
    NUM_BY_HAND,
    draw_keys,
    in_draw_order,
    read_spent,
)
from dashboard.project.cache import ByteCache
from trainer.rewards.model_judge.labels import MOST_KINDS

RESULT_BYTES = 48 * 2**10  # of the draws, and about the rest
MAX_BYTES = 16 * 2**20  # in each process


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelShare:
    label: str
    judge: Annotated[Share, Field(description="As the judge sees it.")]
    corrected: Annotated[
        Share | None,
        Field(
            description="null: people have labelled none of a label that the judge "
            "gave."
        ),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseKind:
    """A kind of cases of the first label, and the judge's phrases for it."""

    name: str
    num: int
    phrases: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    estimate: Estimate
    shares: list[LabelShare]
    num_labelled: int
    num_by_hand: int  # completions that people labelled, and that count
    num_not_drawn: int  # that have labels of the API alone, and do not
    num_undecided: int
    num_unreadable: int
    num_lost_quotes: int
    agreement: float | None  # κ of two people
    kinds: list[CaseKind]  # the most frequent first
    steps: dict[int, tuple[int, int]]  # of each window: first and last


_results: ByteCache[Result | None] = ByteCache(MAX_BYTES, size=lambda _: RESULT_BYTES)


def read_result(question: Question) -> Result | None:
    """Sum up the labels, once while they stay the same; None while nothing is labelled.

    Three queries, and two more where they changed.
    """
    hands = HandLabel.objects.filter(of__question=question)
    version = hands.aggregate(Count("pk"), Max("created_at"))
    key = question.pk, read_spent(question), *version.values()
    return _results.get([key], lambda _: {key: _sum_up(question)})[key]


def _sum_up(question: Question) -> Result | None:
    places = list(question.sample.order_by("rank"))
    labelled = [place for place in places if place.label]
    if not labelled:
        return None
    hands = read_hands(question)
    decided = _decided(question, labelled, hands)
    judged = judged_of(question, labelled, decided)
    by_window: dict[int, list[int]] = {}
    for place in labelled:
        by_window.setdefault(place.window, []).append(place.step)
    found = estimate(judged, seed=question.pk)  # each question its own draws
    truth: Sequence[Share | None] = found.truth or [None] * len(question.names)
    num_by_hand = int((judged.hand >= 0).sum())
    num_decided = sum(any(each.label for each in of) for of in hands.values())
    return Result(
        estimate=found,
        shares=[
            LabelShare(label=name, judge=share, corrected=corrected)
            for name, share, corrected in zip(
                question.names, found.judge, truth, strict=True
            )
        ],
        num_labelled=len(labelled),
        num_by_hand=num_by_hand,
        num_not_drawn=num_decided - num_by_hand,
        num_undecided=len(hands) - num_decided,
        num_unreadable=sum(bool(p.problem and p.num_tokens_in) for p in places),
        num_lost_quotes=sum(place.has_lost_quote for place in labelled),
        agreement=agreement(question.names, hands),
        kinds=_kinds(question, labelled),
        steps={window: (min(s), max(s)) for window, s in by_window.items()},
    )


def _kinds(question: Question, labelled: Iterable[CompletionLabel]) -> list[CaseKind]:
    """Count kinds by the judge's groups; a phrase in none is a kind of its own."""
    names = {phrase: n for n, phrases in question.kinds.items() for phrase in phrases}
    phrases: dict[str, list[str]] = {}
    for place in labelled:
        if place.label == question.names[0] and place.kind:
            name = names.get(place.kind, place.kind)
            phrases.setdefault(name, []).append(place.kind)
    kinds = [
        CaseKind(
            name=name, num=len(of), phrases=[p for p, _ in Counter(of).most_common()]
        )
        for name, of in phrases.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.num)[:MOST_KINDS]


def read_hands(question: Question) -> dict[int, list[HandLabel]]:
    """Return labels of people by place, the first one first."""
    hands: dict[int, list[HandLabel]] = {}
    for hand in HandLabel.objects.filter(of__question=question).order_by("pk"):
        hands.setdefault(hand.of_id, []).append(hand)
    return hands


def _decided(
    question: Question,
    labelled: list[CompletionLabel],
    hands: dict[int, list[HandLabel]],
) -> dict[int, str]:
    """Return the first person's label of each place, as far as it counts.

    What the API sends may have been chosen by what it is, so it counts only where it is
    of the draw: of each label the first completions without a gap, and only once the
    number that people begin with is among them.
    """
    strata = in_draw_order(labelled, draw_keys(question, labelled)).values()
    least = -(-NUM_BY_HAND // len(strata))
    starts = [list(takewhile(lambda place: place.pk in hands, of)) for of in strata]
    is_drawn = all(
        len(start) >= min(least, len(of))
        for start, of in zip(starts, strata, strict=True)
    )
    drawn = {place.pk for start in starts for place in start if is_drawn}
    decided = {
        pk: [each.label for each in of if each.label and not each.is_imported]
        or [each.label for each in of if each.label and pk in drawn]
        for pk, of in hands.items()
    }
    return {pk: labels[0] for pk, labels in decided.items() if labels}


def judged_of(
    question: Question, labelled: list[CompletionLabel], decided: dict[int, str]
) -> Judged:
    """Return arrays of the labels."""
    number = {name: n for n, name in enumerate(question.names)}
    return Judged(
        label=np.array([number[place.label] for place in labelled]),
        hand=np.array([number.get(decided.get(p.pk, ""), -1) for p in labelled]),
        group=np.array([place.group_id for place in labelled]),
        window=np.array([place.window for place in labelled]),
        weight=np.array([place.weight for place in labelled]),
        key=draw_keys(question, labelled),
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
