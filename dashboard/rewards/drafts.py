"""A recipe while it is being written: what was typed, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.rewards.examples import ShownExample, shown_examples
from dashboard.rewards.formulas import (
    FormulaError,
    read_formula,
    read_schedule,
    write_formula,
    write_schedule,
)
from dashboard.rewards.json_text import read_json
from dashboard.rewards.params import (
    ParamField,
    Unreadable,
    as_texts,
    as_value,
    param_fields,
)
from dashboard.rewards.sandboxes import sandbox_here
from trainer.rewards.rule import Rule
from trainer.rewards.rules import RULES
from trainer.rewards.spec import MAX_RULES, Recipe, RuleSpec
from trainer.rewards.terms import Clip

CLIP_FIELDS = ("clip_low", "clip_high")
TERM_FIELDS = (
    "gate_rule",
    "gate_at_least",
    "gate_otherwise",
    "schedule",
    *CLIP_FIELDS,
)
TERM_PLACES = ("name", "weight", "only_if", "clip", "schedule")


@dataclass(slots=True)
class DraftField:
    """One input of one rule, as a template shows it."""

    field: ParamField
    text: str
    errors: list[str]

    @property
    def is_changed(self) -> bool:
        # Browsers send line ends as CR LF whatever was typed.
        return self.text.replace("\r\n", "\n") != self.field.default


@dataclass(slots=True)
class RuleDraft:
    kind: str
    name: str
    weight: str
    texts: dict[str, str]
    term: dict[str, str] = field(default_factory=dict)  # by the names of TERM_FIELDS
    # By parameter name; those of TERM_PLACES are reserved, "" is the whole rule.
    errors: dict[str, list[str]] = field(default_factory=dict)
    spec: RuleSpec | None = None
    prefix: str = ""  # of its fields' names; the recipe gives it

    @classmethod
    def new(cls, kind: str, taken: Iterable[str]) -> RuleDraft:
        return cls(kind, _free_name(kind, set(taken)), "1", as_texts(kind, {}))

    @classmethod
    def of(cls, spec: RuleSpec) -> RuleDraft:
        texts = as_texts(spec.kind, spec.params)
        return cls(spec.kind, spec.name, _plain(spec.weight), texts, _term_texts(spec))

    @property
    def rule(self) -> Rule[Any]:
        return RULES[self.kind]

    @property
    def examples(self) -> list[ShownExample]:
        return shown_examples(self.kind)

    @property
    def fields(self) -> list[DraftField]:
        return [
            DraftField(item, self.texts[item.name], self.errors.get(item.name, []))
            for item in param_fields(self.kind)
        ]

    @property
    def num_changed(self) -> int:
        return sum(item.is_changed for item in self.fields)

    @property
    def is_open(self) -> bool:
        """Whether its settings are shown unasked: one is wrong, must be given, or is
        a program, which is what such a rule is about."""
        return any(item.errors or item.field.is_program for item in self.fields)

    @property
    def name_errors(self) -> list[str]:
        return self.errors.get("name", [])

    @property
    def weight_errors(self) -> list[str]:
        return self.errors.get("weight", [])

    @property
    def is_composed(self) -> bool:
        """Whether it has more than a weight, or something of that is wrong."""
        return any(self.term.values()) or bool(
            self.gate_errors or self.clip_errors or self.schedule_errors
        )

    @property
    def gate_errors(self) -> list[str]:
        return self.errors.get("only_if", [])

    @property
    def clip_errors(self) -> list[str]:
        return self.errors.get("clip", [])

    @property
    def schedule_errors(self) -> list[str]:
        return self.errors.get("schedule", [])

    @property
    def rule_errors(self) -> list[str]:
        return self.errors.get("", [])

    @property
    def sandbox_problem(self) -> str:
        """Why this machine cannot try it; "" where it can, or needs no sandbox."""
        return sandbox_here().problem if self.rule.needs_sandbox else ""

    def validate(self) -> None:
        """Fill `spec`, or `errors` under the field that each belongs to."""
        params = self._params()
        term = self._term()
        try:
            self.spec = RuleSpec.model_validate(
                {
                    "name": self.name,
                    "kind": self.kind,
                    "weight": self.weight.strip(),
                    **term,
                    "params": params,
                }
            )
        except ValidationError as error:
            self._add(error, known=TERM_PLACES)

    def _term(self) -> dict[str, Any]:
        """What it has beside its weight, of the texts that are there."""
        given = {name: text.strip() for name, text in self.term.items()}
        tree: dict[str, Any] = {"clip": _clip_tree(given)}
        if given.get("gate_rule"):
            tree["only_if"] = {
                "rule": given["gate_rule"],
                "at_least": given.get("gate_at_least") or "1",
                "otherwise": given.get("gate_otherwise") or "zero",
            }
        if given.get("schedule"):
            try:
                tree["schedule"] = read_schedule(given["schedule"])
            except FormulaError as error:
                self._refuse("schedule", str(error))
        return tree

    def _params(self) -> dict[str, Any]:
        values = {}
        for item in param_fields(self.kind):
            try:
                values[item.name] = as_value(item, self.texts[item.name])
            except Unreadable as error:
                self._refuse(item.name, str(error))
        if self.errors:
            return {}
        try:
            params = self.rule.params_model.model_validate(values)
        except ValidationError as error:
            self._add(error, known=tuple(values))
            return {}
        checked: dict[str, Any] = params.model_dump(mode="json")
        return checked

    def _add(self, error: ValidationError, known: tuple[str, ...]) -> None:
        for problem in error.errors(include_url=False):
            place = str(problem["loc"][0]) if problem["loc"] else ""
            if place in known:
                self._refuse(place, describe(problem))
            elif not self.errors:
                # The parameters say it beside their field already.
                self._refuse("", describe(problem))

    def _refuse(self, place: str, sentence: str) -> None:
        self.errors.setdefault(place, []).append(sentence)


@dataclass(slots=True)
class RecipeDraft:
    rules: list[RuleDraft]
    errors: list[str] = field(default_factory=list)
    combine: str = "sum"
    clip: dict[str, str] = field(default_factory=dict)  # clip_low and clip_high
    recipe: Recipe | None = None
    formula_text: str = ""
    typed_formula: str | None = None  # what could not be read
    formula_errors: list[str] = field(default_factory=list)
    json_text: str = ""
    typed_json: str | None = None  # what could not be read
    json_errors: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, recipe: Recipe) -> RecipeDraft:
        return cls(
            [RuleDraft.of(spec) for spec in recipe.rules],
            combine=recipe.combine,
            clip=_clip_texts(recipe.clip),
        )

    @classmethod
    def posted(cls, data: Mapping[str, str]) -> RecipeDraft:
        rules = []
        for number in range(MAX_RULES):
            prefix = f"rules-{number}-"
            kind = data.get(f"{prefix}kind")
            if kind in RULES:
                rules.append(_posted_rule(data, prefix, kind))
        clip = {name: data.get(name, "") for name in CLIP_FIELDS}
        return cls(rules, combine=data.get("combine", "sum"), clip=clip)

    def validate(self) -> Recipe | None:
        for number, rule in enumerate(self.rules):
            rule.prefix = f"rules-{number}"
            rule.validate()
        if len(self.specs) == len(self.rules):
            self._join(self.specs)
        self.json_text = write_json(self.recipe) if self.recipe else ""
        self.formula_text = write_formula(self.recipe) if self.recipe else ""
        if self.typed_formula is not None:
            self.formula_text = self.typed_formula
        if self.typed_json is not None:
            self.json_text = self.typed_json
        return self.recipe

    def _join(self, specs: list[RuleSpec]) -> None:
        try:
            self.recipe = Recipe.model_validate(
                {
                    "rules": specs,
                    "combine": self.combine,
                    "clip": _clip_tree(self.clip),
                }
            )
        except ValidationError as error:
            self.errors += [
                describe(problem) for problem in error.errors(include_url=False)
            ]

    @property
    def specs(self) -> list[RuleSpec]:
        """Of the rules that are right, once they are validated."""
        return [rule.spec for rule in self.rules if rule.spec and not rule.errors]

    def compose(self, text: str, specs: list[RuleSpec]) -> RecipeDraft:
        """The draft that a formula makes of rules, or this one with what is wrong."""
        try:
            recipe = Recipe.model_validate(read_formula(text, specs))
        except ValidationError as error:
            self.formula_errors = [
                describe(problem) for problem in error.errors(include_url=False)
            ]
        except FormulaError as error:
            self.formula_errors = [str(error)]
        else:
            return RecipeDraft.of(recipe)
        self.typed_formula = text
        return self

    @property
    def names(self) -> list[str]:
        return [rule.name for rule in self.rules]

    @property
    def wrong_names(self) -> list[str]:
        """Of the rules in which something is wrong, once they are validated."""
        return [rule.name or rule.rule.title for rule in self.rules if rule.errors]

    @property
    def is_full(self) -> bool:
        return len(self.rules) >= MAX_RULES

    def add(self, kind: str) -> None:
        if kind in RULES and not self.is_full:
            taken = [rule.name for rule in self.rules]
            self.rules.append(RuleDraft.new(kind, taken))

    def remove(self, number: int) -> None:
        if number < len(self.rules):
            del self.rules[number]

    def move(self, number: int, by: int) -> None:
        to = number + by
        if number < len(self.rules) and 0 <= to < len(self.rules):
            self.rules.insert(to, self.rules.pop(number))


def _posted_rule(data: Mapping[str, str], prefix: str, kind: str) -> RuleDraft:
    texts = {
        # A switch that is off, like a field left out, is not sent at all.
        item.name: data.get(f"{prefix}params-{item.name}", "")
        for item in param_fields(kind)
    }
    name, weight = data.get(f"{prefix}name", ""), data.get(f"{prefix}weight", "")
    term = {field: data.get(f"{prefix}{field}", "") for field in TERM_FIELDS}
    return RuleDraft(kind, name.strip(), weight, texts, term)


def _term_texts(spec: RuleSpec) -> dict[str, str]:
    texts = _clip_texts(spec.clip)
    if spec.schedule is not None:
        texts["schedule"] = write_schedule(spec.schedule)
    if spec.only_if is not None:
        texts["gate_rule"] = spec.only_if.rule
        texts["gate_at_least"] = _plain(spec.only_if.at_least)
        if spec.may_not_apply:
            texts["gate_otherwise"] = spec.only_if.otherwise
    return texts


def _clip_texts(clip: Clip | None) -> dict[str, str]:
    ends = (clip.low, clip.high) if clip else (None, None)
    return {
        name: _plain(end)
        for name, end in zip(CLIP_FIELDS, ends, strict=True)
        if end is not None
    }


def _clip_tree(texts: Mapping[str, str]) -> dict[str, str] | None:
    """A clip of the ends that are given; None without any."""
    ends = {
        name.removeprefix("clip_"): texts[name].strip()
        for name in CLIP_FIELDS
        if texts.get(name, "").strip()
    }
    return ends or None


def _plain(number: float) -> str:
    # Not :g, which would round it.
    return str(number).removesuffix(".0")


def _free_name(kind: str, taken: set[str]) -> str:
    names = [kind, *(f"{kind}_{number}" for number in range(2, MAX_RULES + 2))]
    return next(name for name in names if name not in taken)


def write_json(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)


def read_recipe(text: str) -> Recipe:
    """The recipe a JSON text describes; ValueError with one sentence a line."""
    tree = read_json(text)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise ValueError("\n".join(map(_located, problems))) from None


def _located(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {describe(problem)}" if place else describe(problem)


def describe(problem: Any) -> str:
    """One pydantic error as a sentence with the value seen."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    if problem["type"] == "string_too_short" and not problem["input"]:
        return "This is empty. Fill it in."
    if problem["type"] == "string_pattern_mismatch":
        message = f"Must match {problem['ctx']['pattern']}"
    seen = repr(problem["input"])
    seen = seen if len(seen) <= 60 else f"{seen[:59]}…"
    return f"{message}; got {seen}."
