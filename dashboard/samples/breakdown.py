"""How a completion came by its reward, and how it stands in its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dashboard.samples.completion import Completion
from dashboard.samples.models import Group
from dashboard.samples.strips import Balance, draw_balance
from trainer.rewards.scoring import parts_of
from trainer.rewards.spec import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class RulePart:
    """A rule's share of one reward: part = the score that counts × weight.

    That is the rule's own score once it is clipped and gated; None: it is left out.
    """

    name: str
    score: float | None
    counted: float | None
    weight: float | None
    part: float | None
    bar: Balance | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One completion beside the others of its group."""

    completion: Completion
    parts: list[RulePart]
    other: float | None  # of the reward, in no rule's part
    advantage_bar: Balance | None  # None: it is not known
    num_alike: int  # completions of the group with this very text, itself included
    is_best: bool
    is_worst: bool


def rank_completions(
    group: Group,
    completions: Sequence[Completion],
    weights: dict[str, float],
    recipe: Recipe | None = None,
) -> list[Standing]:
    """Each beside the others, by the weights of its step; `recipe` says what counts."""
    texts = Counter(c.text for c in completions)
    rewards = [c.reward for c in completions if c.reward is not None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    differ = best > worst
    known = [abs(c.advantage) for c in completions if c.advantage is not None]
    largest_advantage = max(known, default=0.0)
    split = [_split(group, c, weights, recipe) for c in completions]
    largest_part = max(
        (abs(p.part) for parts in split for p in parts if p.part is not None),
        default=0.0,
    )
    # What the parts of a product or a minimum leave over means nothing.
    is_sum = recipe is None or recipe.combine in ("sum", "normalize_then_sum")
    return [
        Standing(
            completion=c,
            parts=[_with_bar(part, largest_part) for part in parts],
            other=_unexplained(c, parts) if is_sum else None,
            advantage_bar=None
            if c.advantage is None
            else draw_balance(c.advantage, largest=largest_advantage),
            num_alike=texts[c.text],
            is_best=differ and c.reward == best,
            is_worst=differ and c.reward == worst,
        )
        for c, parts in zip(completions, split, strict=True)
    ]


def find_base(standings: Sequence[Standing]) -> Standing | None:
    """What the others are compared with: the first of the best, else the first."""
    best = (standing for standing in standings if standing.is_best)
    return next(best, standings[0] if standings else None)


def _split(
    group: Group,
    completion: Completion,
    weights: dict[str, float],
    recipe: Recipe | None,
) -> list[RulePart]:
    scores = dict(zip(group.rule_names, completion.rule_scores, strict=False))
    parts = parts_of(recipe, scores, step=group.step) if recipe else {}
    return [
        _part(
            name,
            score,
            parts[name].score if name in parts else score,
            weights.get(name),
        )
        for name, score in scores.items()
    ]


def _part(
    name: str, score: float | None, counted: float | None, weight: float | None
) -> RulePart:
    part = None if counted is None or weight is None else counted * weight
    return RulePart(
        name=name, score=score, counted=counted, weight=weight, part=part, bar=None
    )


def _with_bar(part: RulePart, largest: float) -> RulePart:
    if part.part is None:
        return part
    return replace(part, bar=draw_balance(part.part, largest=largest))


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
