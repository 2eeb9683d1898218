"""Recipes of published systems, by name."""

from __future__ import annotations

from pathlib import Path

from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

_FOLDER = Path(__file__).parent


def published_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_published(name: str) -> Recipe:
    """The recipe, with strict grading; ValueError for an unknown name."""
    if name not in published_names():
        raise ValueError(
            f'There is no preset "{name}". Choose one of: '
            f"{', '.join(published_names())}."
        )
    text = (_FOLDER / f"{name}.json").read_text(encoding="utf-8")
    return Recipe.model_validate_json(text)


def as_published(recipe: Recipe) -> Recipe:
    """The recipe with each rule in its as_published mode, holes included.

    ValueError when no rule has such a mode, since nothing would change.
    """
    tree = recipe.model_dump()
    has_mode = [
        rule
        for rule in tree["rules"]
        if "mode" in RULES[rule["kind"]].params_model.model_fields
    ]
    if not has_mode:
        kinds = ", ".join(rule.kind for rule in recipe.rules)
        raise ValueError(
            f"No rule of this recipe has an as_published mode (its rules: {kinds}). "
            "Leave --as-published out."
        )
    for rule in has_mode:
        rule["params"]["mode"] = "as_published"
    return Recipe.model_validate(tree)
