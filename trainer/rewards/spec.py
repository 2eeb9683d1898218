"""A reward recipe: named, weighted rules, as data. No torch, no Django."""

from __future__ import annotations

from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from trainer.rewards.rule import Params
from trainer.rewards.rules import RULES

MAX_RULES = 40


class RuleSpec(BaseModel):
    """One rule of a recipe.

    Parameters left out are filled with their defaults, so that a stored recipe keeps
    its meaning when a default changes.

    >>> RuleSpec(name="answer", kind="numeric_answer", weight=1.0, params={})
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    kind: str
    weight: float = Field(1.0, ge=-1_000, le=1_000)
    params: dict[str, Any] = {}

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in RULES:
            raise ValueError(
                f'There is no rule of kind "{kind}". Choose one of: {", ".join(RULES)}.'
            )
        return kind

    @model_validator(mode="after")
    def _params_are_valid(self) -> Self:
        try:
            params = self.checked_params()
        except ValidationError as error:
            raise ValueError(_explain(self, error)) from error
        filled = params.model_dump(mode="json")
        holding = [name for name, value in filled.items() if _holds_nul(value)]
        if holding:
            raise ValueError(
                f'Rule "{self.name}", parameter {holding[0]}: it holds a NUL '
                "character, which cannot be stored. Remove it."
            )
        # The model is frozen; this is still its making.
        object.__setattr__(self, "params", filled)
        return self

    def checked_params(self) -> Params:
        """The parameters as their rule's model."""
        params: Params = RULES[self.kind].params_model.model_validate(self.params)
        return params


class Recipe(BaseModel):
    """Rules whose weighted sum is the reward of a completion."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rules: tuple[RuleSpec, ...] = Field(max_length=MAX_RULES)

    @model_validator(mode="after")
    def _rules_make_a_reward(self) -> Self:
        if not self.rules:
            raise ValueError("A recipe needs at least one rule; got none. Add a rule.")
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f'Two rules are named "{twice[0]}". Give each rule its own name.'
            )
        if not any(rule.weight for rule in self.rules):
            raise ValueError(
                "Every rule has weight 0, so every reward would be 0. Give at least "
                "one rule a weight other than 0."
            )
        return self


def recipe_bounds(recipe: Recipe) -> tuple[float, float]:
    """The lowest and the highest reward the recipe can give when all rules score."""
    low = high = 0.0
    for rule in recipe.rules:
        bounds = RULES[rule.kind].bounds(rule.checked_params())
        ends = [rule.weight * bound for bound in bounds]
        low += min(ends)
        high += max(ends)
    return low, high


def is_slow(recipe: Recipe) -> bool:
    """Whether a rule takes so long that processes of their own are worth it."""
    return any(RULES[rule.kind].is_slow for rule in recipe.rules)


def needs_sandbox(recipe: Recipe) -> bool:
    """Whether a rule runs code, which only a sandbox may do."""
    return any(RULES[rule.kind].needs_sandbox for rule in recipe.rules)


def _holds_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(_holds_nul(part) for part in value)
    return isinstance(value, str) and "\x00" in value


def _explain(rule: RuleSpec, error: ValidationError) -> str:
    """One sentence for the first fault: rule, parameter, value, what is asked for."""
    known = ", ".join(RULES[rule.kind].params_model.model_fields)
    sentences = []
    for fault in error.errors():
        name = ".".join(str(part) for part in fault["loc"])
        where = f'Rule "{rule.name}"' + (f", parameter {name}" if name else "")
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = f"{rule.kind} has no such parameter. It has: {known}"
        elif fault["type"] == "missing":
            message = "a value is needed"
        elif fault["type"] != "value_error":
            message = f"got {_quote(fault['input'])}. {message}"
        sentences.append(f"{where}: {message.rstrip('.')}.")
    return " ".join(sentences)


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
