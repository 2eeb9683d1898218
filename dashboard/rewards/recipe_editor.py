"""The recipe form: its input and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.rewards.recipe_text import describe, write_json
from dashboard.rewards.rule_editor import CLIP_FIELDS, RuleDraft, clip_texts, clip_tree
from trainer.rewards.rules import RULES
from trainer.rewards.spec import MAX_RULES, Recipe, RuleSpec


@dataclass(slots=True)
class RecipeDraft:
    rules: list[RuleDraft]
    errors: list[str] = field(default_factory=list)
    combine: str = "sum"
    clip: dict[str, str] = field(default_factory=dict)  # clip_low and clip_high
    recipe: Recipe | None = None
    json_text: str = ""
    typed_json: str | None = None  # invalid JSON
    json_errors: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe) -> RecipeDraft:
        return cls(
            [RuleDraft.of(spec) for spec in recipe.rules],
            combine=recipe.combine,
            clip=clip_texts(recipe.clip),
        )

    @classmethod
    def posted(cls, data: Mapping[str, str]) -> RecipeDraft:
        rules = []
        for number in range(MAX_RULES):
            prefix = f"rules-{number}-"
            kind = data.get(f"{prefix}kind")
            if kind in RULES:
                rules.append(RuleDraft.posted(data, prefix, kind))
        clip = {name: data.get(name, "") for name in CLIP_FIELDS}
        return cls(rules, combine=data.get("combine", "sum"), clip=clip)

    def validate(self) -> Recipe | None:
        self._tell_of_others()
        for number, rule in enumerate(self.rules):
            rule.prefix = f"rules-{number}"
            rule.validate()
        if len(self.specs) == len(self.rules):
            self._combine(self.specs)
        self.json_text = write_json(self.recipe) if self.recipe else ""
        if self.typed_json is not None:
            self.json_text = self.typed_json
        return self.recipe

    def _tell_of_others(self) -> None:
        """Which functions of its source the other rules call, to each rule."""
        reports = [rule.report for rule in self.rules]
        for rule in self.rules:
            rule.in_use = frozenset(
                report.called.name
                for other, report in zip(self.rules, reports, strict=True)
                if other is not rule
                and report
                and report.called
                and rule.texts.get("source") == other.texts["source"]
            )

    def _combine(self, specs: list[RuleSpec]) -> None:
        try:
            self.recipe = Recipe.model_validate(
                {
                    "rules": specs,
                    "combine": self.combine,
                    "clip": clip_tree(self.clip),
                }
            )
        except ValidationError as error:
            self.errors += [
                describe(problem) for problem in error.errors(include_url=False)
            ]

    @property
    def specs(self) -> list[RuleSpec]:
        """Of the valid rules, after validation."""
        return [rule.spec for rule in self.rules if rule.spec and not rule.errors]

    @property
    def names(self) -> list[str]:
        return [rule.name for rule in self.rules]

    @property
    def wrong_names(self) -> list[str]:
        """Of the rules with errors, after validation."""
        return [rule.name or rule.rule.title for rule in self.rules if rule.errors]

    @property
    def is_full(self) -> bool:
        return len(self.rules) >= MAX_RULES

    def add(self, kind: str, params: Mapping[str, Any] | None = None) -> None:
        if kind in RULES and not self.is_full:
            self.rules.append(RuleDraft.new(kind, self.names, params or {}))

    def insert_example(self, number: int, form: str) -> None:
        if number < len(self.rules):
            self.rules[number].insert_example(form)

    def split(self, number: int) -> None:
        """Make a rule of each function of a rule's source, as far as there is room."""
        if number < len(self.rules):
            self._tell_of_others()
            parts = self.rules[number].split(self.names)
            room = MAX_RULES - len(self.rules) + 1
            self.rules[number : number + 1] = parts[:room]

    def split_unnamed(self) -> None:
        """Split the rules that do not say which of several functions they call."""
        for number in reversed(range(len(self.rules))):
            if self.rules[number].is_unnamed:
                self.split(number)

    def remove(self, number: int) -> None:
        if number < len(self.rules):
            del self.rules[number]

    def move(self, number: int, by: int) -> None:
        to = number + by
        if number < len(self.rules) and 0 <= to < len(self.rules):
            self.rules.insert(to, self.rules.pop(number))
