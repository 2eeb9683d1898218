"""Groups as a rollup is made of them, by hand or drawn by hypothesis."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from dashboard.completions.signals.composition import Composition
from dashboard.completions.signals.records import StepGroup
from trainer.rewards.scoring import parts_of, reward_of
from trainer.rewards.spec import Recipe


def make_recipe(weights: Mapping[str, float], **fields: Any) -> Recipe:
    rules = [
        {"name": name, "kind": "exact_answer", "weight": weight}
        for name, weight in weights.items()
    ]
    return Recipe.model_validate({"rules": rules, **fields})


def make_composition(recipe: Recipe, kind: Any = "sum") -> Composition:
    return Composition(kind=kind, recipe=recipe, weights={"overlong": 1.0})


def score(
    recipe: Recipe, *completions: Mapping[str, float | None], **fields: Any
) -> StepGroup:
    """A group of the recipe's rewards, each advantage the reward less the mean."""
    rewards = [reward_of(recipe, parts_of(recipe, c, step=1)) for c in completions]
    return make_group(rewards, rules=[dict(c) for c in completions], **fields)


def make_group(rewards: Sequence[float | None], **fields: Any) -> StepGroup:
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / len(known) if known else None
    is_mixed = bool(known) and min(known) < max(known)
    given: dict[str, Any] = {
        "prompt_index": 0,
        "reward_mean": mean,
        "reward_std": 0.5 if is_mixed else 0.0,
        "signal": "mixed" if is_mixed else "all_wrong",
        "is_trained": True,
        "rewards": rewards,
        "advantages": [
            0.0 if r is None or mean is None or not is_mixed else r - mean
            for r in rewards
        ],
        "num_tokens": [10] * len(rewards),
        "rules": [{"answer": r} for r in rewards],
        "texts": [f"<answer>{r}</answer>" for r in rewards],
    }
    return StepGroup(**given | fields)


# Halves and their like, so that sums are exact and ties are ties.
SCORES = st.integers(-8, 8).map(lambda eighths: eighths / 8)
NAMES = ("answer", "format", "length")


def drawn_groups(recipe: Recipe) -> st.SearchStrategy[list[StepGroup]]:
    completion = st.fixed_dictionaries(dict.fromkeys(NAMES, SCORES))
    group = st.lists(completion, min_size=1, max_size=5)
    return st.lists(group, min_size=1, max_size=4).map(
        lambda groups: [score(recipe, *each) for each in groups]
    )
