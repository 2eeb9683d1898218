"""A reward recipe: named, weighted rules, as data. No torch, no Django."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class RuleSpec(BaseModel):
    """One rule of a recipe.

    >>> RuleSpec(name="answer", kind="numeric_answer", weight=1.0, params={})
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    kind: str
    weight: float = Field(1.0, ge=-1_000, le=1_000)
    params: dict[str, Any] = {}


class Recipe(BaseModel):
    """Rules whose weighted sum is the reward of a completion."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rules: tuple[RuleSpec, ...]
