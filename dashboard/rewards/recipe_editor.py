"""The recipe form: its input and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.project.errors import UserError
from dashboard.rewards.gallery import Template
from dashboard.rewards.recipe_text import (
    describe,
    read_formula,
    write_formula,
    write_json,
)
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
    formula: str = ""
    typed_formula: str | None = None  # invalid formula
    formula_error: str = ""

    @classmethod
    def of(cls, recipe: Recipe) -> RecipeDraft:
        return cls(
            [RuleDraft.of(spec) for spec in recipe.rules],
            combine=recipe.combine,
            clip=clip_texts(recipe.clip),
        )

    @classmethod
    def from_template(cls, template: Template) -> RecipeDraft:
        draft = cls([])
        for kind, weight, params in template.rules:
            draft.add(kind, params)
            draft.rules[-1].weight = weight
        return draft

    @classmethod
    def posted(cls, data: Mapping[str, str]) -> RecipeDraft:
        rules = []
        for number in range(MAX_RULES):
            prefix = f"rules-{number}-"
            kind = data.get(f"{prefix}kind")
            if kind in RULES:
                rules.append(RuleDraft.posted(data, prefix, kind))
        clip = {name: data.get(name, "") for name in CLIP_FIELDS}
        return cls(
            rules,
            combine=data.get("combine", "sum"),
            clip=clip,
            formula=data.get("formula", ""),
        )

    def validate(self) -> Recipe | None:
        self.errors = []
        gates = {rule.term.get("gate_rule") for rule in self.rules}
        for rule in self.rules:
            if rule.name not in gates:  # a gate's field would have the old name
                rule.name_after_function(self.names)
        self._tell_of_others()
        for number, rule in enumerate(self.rules):
            rule.prefix = f"rules-{number}"
            rule.validate()
        self.recipe, specs = None, self.specs
        if len(specs) == len(self.rules):
            clip = clip_tree(self.clip)
            tree = {"rules": specs, "combine": self.combine, "clip": clip}
            try:
                self.recipe = Recipe.model_validate(tree)
            except ValidationError as error:
                self.errors += map(describe, error.errors(include_url=False))
        self.json_text = write_json(self.recipe) if self.recipe else ""
        if self.typed_json is not None:
            self.json_text = self.typed_json
        if self.typed_formula is not None:
            self.formula = self.typed_formula
        elif self.recipe:
            self.formula = write_formula(self.recipe)
        return self.recipe

    def _tell_of_others(self) -> None:
        """Tell each rule which functions of its source the other rules call."""
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

    @property
    def specs(self) -> list[RuleSpec]:
        """The specs of the valid rules, after validation."""
        return [rule.spec for rule in self.rules if rule.spec and not rule.errors]

    @property
    def names(self) -> list[str]:
        return [rule.name for rule in self.rules]

    @property
    def wrong_names(self) -> list[str]:
        """The names of the rules with errors, after validation."""
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

    def apply_formula(self, text: str) -> None:
        """Take weights, gates, clips, combination and order from a formula.

        A rule's kind that is named and not there yet is added.

        Raises:
            UserError: it cannot be read, or does not name each rule once.
        """
        formula = read_formula(text, [*self.names, *RULES])
        left_out = [name for name in self.names if name not in formula.terms]
        if left_out:
            raise UserError(
                "rewards.formula_lacks_rule",
                f"The formula leaves out {', '.join(left_out)}. Give a rule weight 0, "
                "or remove it.",
            )
        for name in formula.terms:
            if name not in self.names:
                self.add(name)
        by_name = {rule.name: rule for rule in self.rules}
        self.rules = [by_name[name] for name in formula.terms if name in by_name]
        for rule in self.rules:
            rule.weight, rule.term = formula.terms[rule.name]
        self.combine, self.clip = formula.combine, formula.clip

    def move(self, number: int, by: int) -> None:
        to = number + by
        if number < len(self.rules) and 0 <= to < len(self.rules):
            self.rules.insert(to, self.rules.pop(number))
