"""How a completion came by its reward, and how it stands in its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.samples.models import Completion, Group
from dashboard.samples.strips import Balance, draw_balance


@dataclass(frozen=True, kw_only=True, slots=True)
class RulePart:
    """A rule's share of one reward: part = score × weight."""

    name: str
    score: float | None
    weight: float | None
    part: float | None
    bar: Balance | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One completion beside the others of its group."""

    completion: Completion
    parts: list[RulePart]
    other: float | None  # of the reward, in no rule's part
    advantage_bar: Balance
    num_alike: int  # completions of the group with this very text, itself included
    is_best: bool
    is_worst: bool


def rank_completions(
    group: Group, completions: Sequence[Completion], weights: dict[str, float]
) -> list[Standing]:
    texts = Counter(c.text for c in completions)
    rewards = [c.reward for c in completions if c.reward is not None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    differ = best > worst
    largest_advantage = max((abs(c.advantage) for c in completions), default=0.0)
    largest_part = _largest_part(group, completions, weights)
    return [
        Standing(
            completion=c,
            parts=(parts := _split(group, c, weights, largest_part)),
            other=_unexplained(c, parts),
            advantage_bar=draw_balance(c.advantage, largest=largest_advantage),
            num_alike=texts[c.text],
            is_best=differ and c.reward == best,
            is_worst=differ and c.reward == worst,
        )
        for c in completions
    ]


def _largest_part(
    group: Group, completions: Sequence[Completion], weights: dict[str, float]
) -> float:
    parts = [
        abs(score * weights.get(name, 0.0))
        for c in completions
        for name, score in zip(group.rule_names, c.rule_scores, strict=False)
        if score is not None
    ]
    return max(parts, default=0.0)


def _split(
    group: Group, completion: Completion, weights: dict[str, float], largest: float
) -> list[RulePart]:
    pairs = zip(group.rule_names, completion.rule_scores, strict=False)
    return [_part(name, score, weights.get(name), largest) for name, score in pairs]


def _part(
    name: str, score: float | None, weight: float | None, largest: float
) -> RulePart:
    part = None if score is None or weight is None else score * weight
    bar = None if part is None else draw_balance(part, largest=largest)
    return RulePart(name=name, score=score, weight=weight, part=part, bar=bar)


def _unexplained(completion: Completion, parts: list[RulePart]) -> float | None:
    """What the rules leave over, such as a KL taken off the reward."""
    if completion.reward is None:
        return None
    rest = completion.reward - sum(p.part for p in parts if p.part is not None)
    return rest if abs(rest) > 1e-6 else None


SORT_KEYS: dict[str, Callable[[Standing], float | None]] = {
    "reward": lambda s: s.completion.reward,
    "length": lambda s: s.completion.num_tokens,
    "position": lambda s: s.completion.position,
}


def sort_standings(standings: list[Standing], sort: str) -> list[Standing]:
    """Sorted by `reward`, `-length` …; completions without a value come last."""
    key = SORT_KEYS[sort.removeprefix("-")]
    keyed = [(value, s) for s in standings if (value := key(s)) is not None]
    keyed.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [s for _, s in keyed] + [s for s in standings if key(s) is None]
