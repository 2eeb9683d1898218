"""The parts of a completion's reward, and its rank in the group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.completions.flags import OUTCOMES, FlagFilter
from dashboard.completions.models import Completion, Group
from dashboard.completions.sparklines import Balance, draw_balance
from dashboard.runs.models import Run
from trainer.rewards.scoring import Correctness, correctness_of, parts_of
from trainer.rewards.spec import Recipe, recipe_bounds

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RulePart:
    """A rule's part of one reward: counted × weight.

    counted: the score after clip and gate; None: not counted.
    """

    name: str
    score: float | None
    counted: float | None
    weight: float | None
    part: float | None
    bar: Balance | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRank:
    """A completion compared with the others of its group."""

    completion: Completion
    parts: list[RulePart]
    other: float | None  # of the reward, in no rule's part
    advantage_bar: Balance | None  # None: unknown
    num_alike: int  # completions of the group with this text, including this one
    is_best: bool
    is_worst: bool


def rank_completions(
    group: Group,
    completions: Sequence[Completion],
    weights: dict[str, float],
    recipe: Recipe | None = None,
) -> list[GroupRank]:
    """Parts and rank of each, by the weights of the step; `recipe` gates and clips."""
    texts = Counter(c.text for c in completions)
    rewards = [c.reward for c in completions if c.reward is not None]
    best, worst = max(rewards, default=0.0), min(rewards, default=0.0)
    differ = best > worst
    largest_advantage = max(
        [abs(c.advantage) for c in completions if c.advantage is not None], default=0.0
    )
    split = [_split(group, c, weights, recipe) for c in completions]
    largest_part = max(
        (abs(p.part) for parts in split for p in parts if p.part is not None),
        default=0.0,
    )
    # For a product or a minimum, the rest has no meaning.
    is_sum = recipe is None or recipe.combine in ("sum", "normalize_then_sum")
    return [
        GroupRank(
            completion=c,
            parts=[
                replace(part, bar=draw_balance(part.part, largest=largest_part))
                if part.part is not None
                else part
                for part in parts
            ],
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


def find_base(ranks: Sequence[GroupRank]) -> GroupRank | None:
    """Find the reference for differences: the first of the best, else the first."""
    return next((rank for rank in ranks if rank.is_best), ranks[0] if ranks else None)


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
    return RulePart(
        name=name,
        score=score,
        counted=counted,
        weight=weight,
        part=None if counted is None or weight is None else counted * weight,
        bar=None,
    )


def _unexplained(completion: Completion, parts: list[RulePart]) -> float | None:
    """Compute the part of a reward without a rule, such as a KL penalty."""
    if completion.reward is None:
        return None
    rest = completion.reward - sum(p.part for p in parts if p.part is not None)
    return rest if abs(rest) > 1e-6 else None


SORT_KEYS: dict[str, Callable[[GroupRank], float | None]] = {
    "reward": lambda s: s.completion.reward,
    "length": lambda s: s.completion.num_tokens,
    "position": lambda s: s.completion.position,
}


def sort_ranks(ranks: list[GroupRank], sort: str) -> list[GroupRank]:
    """Sort by `reward`, `-length` …"""
    return sort_by(SORT_KEYS, ranks, sort)


def sort_by(
    keys: Mapping[str, Callable[[T], float | None]], rows: Sequence[T], sort: str
) -> list[T]:
    """Sort rows by one of the keys, descending after "-"; those without come last."""
    key = keys[sort.removeprefix("-")]
    keyed = [(value, row) for row in rows if (value := key(row)) is not None]
    keyed.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in keyed] + [row for row in rows if key(row) is None]


def merge_equal(
    ranks: Sequence[GroupRank], *, separate: Collection[int]
) -> list[tuple[GroupRank, list[int]]]:
    """Pair each completion with the positions of later, equal ones.

    Equal are text, scores, end, and turns without the time that they took.

    Those at the positions of `separate` stay alone.
    """
    merged: dict[Any, tuple[GroupRank, list[int]]] = {}
    for rank in ranks:
        c = rank.completion
        turns = [turn.model_copy(update={"seconds": None}) for turn in c.turns]
        key = (c.text, c.reward, c.rule_scores, c.end_reason, c.num_tokens, repr(turns))
        if c.position in separate:
            merged[c.position] = (rank, [])
        elif key in merged:
            merged[key][1].append(c.position)
        else:
            merged[key] = (rank, [])
    return list(merged.values())


def count_right(run: Run, step: int, completions: Iterable[Completion]) -> int | None:
    """Correct completions of a step; None: correctness is unknown."""
    correctness = correctness_at(run, step)
    if not correctness.is_known:
        return None
    return sum(correctness.holds(c.reward, dict(c.scores)) for c in completions)


# The engine logs its length penalty as a rule with a negative score.
PENALTIES = {"overlong": 1.0}
NO_THRESHOLD = (
    "This run has no threshold for correct completions. Use mean rewards, or sort "
    "completions by reward."
)


def recipe_spec(run: Run, step: int) -> dict[str, Any]:
    """Read the rules of a step, from the run's configuration at launch."""
    spec: dict[str, Any] = run.config["reward"]["recipe"]
    last = 0
    for phase in run.config.get("phases") or ():
        last += phase["num_steps"]
        if step <= last:
            changed: dict[str, Any] = phase.get("changes", {}).get("reward", {})
            return changed.get("recipe") or spec
    return spec


def all_rules(run: Run) -> list[dict[str, Any]]:
    """List the rules of all phases, in their recipes' order."""
    phases = run.config.get("phases") or ()
    rewards = [run.config["reward"]]
    rewards += [phase.get("changes", {}).get("reward", {}) for phase in phases]
    recipes = [reward["recipe"] for reward in rewards if reward.get("recipe")]
    return [rule for spec in recipes for rule in spec["rules"]]


def rule_names(run: Run) -> list[str]:
    return list(dict.fromkeys(rule["name"] for rule in all_rules(run)))


def step_recipe(run: Run, step: int) -> Recipe | None:
    """Read a step's recipe; None if a rule no longer exists."""
    return _parse_recipe(json.dumps(recipe_spec(run, step)))


@lru_cache(maxsize=64)
def _parse_recipe(text: str) -> Recipe | None:
    try:
        return Recipe.model_validate(json.loads(text))
    except ValueError:
        return None


def rule_weights(run: Run, step: int) -> dict[str, float]:
    recipe = step_recipe(run, step)
    if recipe is not None:
        return PENALTIES | {r.name: r.weight_at(step) for r in recipe.rules}
    return PENALTIES | {
        r["name"]: float(r.get("weight", 1.0)) for r in recipe_spec(run, step)["rules"]
    }


def correctness_at(run: Run, step: int) -> Correctness:
    return correctness_by_step(run, [step])[step]


def correct_if(run: Run, step: int) -> str:
    """Define correctness at a step for pages; "" if it is unknown."""
    if run.summary.get("correct") == "highest":  # DECISIONS.md, 28
        return "the highest reward that the rules can give"
    condition = correctness_at(run, step).condition
    return f"{condition} or more" if condition and run.is_imported else condition


def correctness_by_step(run: Run, steps: Iterable[int]) -> dict[int, Correctness]:
    """Find the correctness by the step's recipe, or an imported run's threshold."""
    if run.is_imported:
        return dict.fromkeys(
            steps, Correctness(least_reward=run.config["reward"]["right_from"])
        )
    by_step: dict[int, Correctness] = {}
    recipes: dict[int, Recipe | None] = {}
    by_config: dict[tuple[int, tuple[float, ...]], Correctness] = {}
    for step in steps:
        spec = recipe_spec(run, step)
        if id(spec) not in recipes:
            recipes[id(spec)] = step_recipe(run, step)
        recipe = recipes[id(spec)]
        if recipe is None:
            by_step[step] = Correctness()
            continue
        # A schedule changes the weights at each step.
        weights = id(spec), tuple(rule.weight_at(step) for rule in recipe.rules)
        if weights not in by_config:
            by_config[weights] = correctness_of(recipe, step=step)
        by_step[step] = by_config[weights]
    return by_step


def why_nothing_is_right(run: Run, step: int) -> str:
    """Say why correctness is unknown at this step; "" if it is known."""
    if correctness_at(run, step).is_known:
        return ""
    if run.is_imported:
        return NO_THRESHOLD
    if step_recipe(run, step) is None:
        return (
            "A rule of this run no longer exists, so correctness is unknown. See the "
            "run's settings."
        )
    return (
        "No rule compares with the answer and the reward has no highest value, so "
        "correctness is unknown. Use mean rewards, or sort completions by reward."
    )


def why_never_right(run: Run) -> str:
    """Say why correctness is unknown at every step; "" where it is known at one."""
    lengths = (phase["num_steps"] for phase in run.config.get("phases") or ())
    reasons = [
        why_nothing_is_right(run, step)
        for step in (
            *[end for end in accumulate(lengths) if end < run.last_step],
            run.last_step,
        )
    ]
    return reasons[-1] if all(reasons) else ""


def outcomes_of(run: Run) -> dict[str, FlagFilter]:
    """List the outcomes that the run's completions can have, named by its threshold."""
    if why_never_right(run):
        return {"unscored": OUTCOMES["unscored"]}
    if not run.is_imported:
        return OUTCOMES
    least = sig3(run.config["reward"]["right_from"])
    return OUTCOMES | {
        "right": OUTCOMES["right"]._replace(label=f"reward {least} or more"),
        "not_right": OUTCOMES["not_right"]._replace(label=f"reward below {least}"),
    }


def reward_bounds(run: Run, step: int) -> tuple[float, ...]:
    """Lowest and highest reward; empty if a rule no longer exists."""
    recipe = step_recipe(run, step)
    return () if recipe is None else recipe_bounds(recipe, step=step)
