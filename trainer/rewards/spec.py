"""A reward recipe: named rules and how their scores become one reward, as data.

No torch, no Django. Written as JSON, a recipe leaves out what it does not ask for, so
that one of weights alone is the same text that it always was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from trainer.rewards.rule import Params, quote
from trainer.rewards.rules import RULES, python_function
from trainer.rewards.rules.rightness import AnswerReader, reader_of
from trainer.rewards.terms import (
    LARGEST_WEIGHT,
    NAME,
    Clip,
    Gate,
    Schedule,
    Term,
    without_defaults,
)


@dataclass(frozen=True)
class Interval:
    """The lowest and highest value of a term, which may be absent from the whole."""

    low: float
    high: float
    is_optional: bool

    def with_neutral(self, neutral: float) -> tuple[float, float]:
        """Return its ends, where absence is worth `neutral` to the whole."""
        if not self.is_optional:
            return self.low, self.high
        return min(self.low, neutral), max(self.high, neutral)


def joined(intervals: Sequence[Interval], combine: str) -> tuple[float, float]:
    """Return the range of the sum, the product or the minimum; (0, 0) of none."""
    if not intervals:
        return 0.0, 0.0
    if combine == "product":
        low, high = 1.0, 1.0
        for interval in intervals:
            corners = [a * b for a in (low, high) for b in interval.with_neutral(1.0)]
            low, high = min(corners), max(corners)
        return low, high
    if combine == "minimum":
        certain = [interval.high for interval in intervals if not interval.is_optional]
        highest = (
            min(certain) if certain else max(interval.high for interval in intervals)
        )
        return min(interval.low for interval in intervals), highest
    ends = [interval.with_neutral(0.0) for interval in intervals]
    return math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)


MAX_RULES = 40


class RuleSpec(Term):
    """A rule of a recipe.

    Parameters left out are filled with their defaults, so that a stored recipe keeps
    its meaning when a default changes. `weight` is that of step 1, and with a
    `schedule` changes from there on; `clip` bounds the score before its weight.

    >>> RuleSpec(name="answer", kind="numeric_answer", weight=1.0, params={})
    """

    name: str = Field(pattern=NAME)
    kind: str
    weight: float = Field(1.0, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)
    schedule: Schedule | None = None
    clip: Clip | None = None
    only_if: Gate | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    _checked: Params = PrivateAttr()

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        if kind not in RULES:
            raise ValueError(
                f'Unknown rule kind "{kind}". Choose one of: {", ".join(RULES)}.'
            )
        return kind

    @model_validator(mode="after")
    def _params_are_valid(self) -> Self:
        try:
            params: Params = RULES[self.kind].params_model.model_validate(self.params)
        except ValidationError as error:
            raise ValueError(_explain(self, error)) from error
        filled = params.model_dump(mode="json")
        holding = [name for name, value in filled.items() if _holds_nul(value)]
        if holding:
            raise ValueError(
                f'Rule "{self.name}", parameter {holding[0]}: it contains a NUL '
                "character, which cannot be stored. Remove it."
            )
        # The model is frozen; this is still its making.
        object.__setattr__(self, "params", filled)
        self._checked = params
        return self

    @model_serializer(mode="wrap")
    def _what_is_asked(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree = write(self)
        return dict(without_defaults(tree, schedule=None, clip=None, only_if=None))

    def checked_params(self) -> Params:
        """Return the parameters as their rule's model."""
        return self._checked

    def weight_at(self, step: int) -> float:
        """Return the weight at a step of the run, counted from 1."""
        if self.schedule is None:
            return self.weight
        return self.schedule.weight_at(step, start=self.weight)

    @property
    def weights(self) -> list[float]:
        """Weights between which the weight moves, from the start to the end."""
        points = self.schedule.points if self.schedule else ()
        return [self.weight, *(point.weight for point in points)]

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and highest score that counts, before its weight."""
        low, high = self.own_bounds
        if self.clip is not None:
            low, high = self.clip.apply(low), self.clip.apply(high)
        if self.only_if is not None and self.only_if.otherwise == "zero":
            low, high = min(low, 0.0), max(high, 0.0)
        return low, high

    @property
    def own_bounds(self) -> tuple[float, float]:
        """The lowest and highest score that the rule gives."""
        low, high = RULES[self.kind].bounds(self._checked)
        return low, high

    @property
    def may_not_apply(self) -> bool:
        """True where its gate leaves it out of the reward, rather than at 0."""
        return self.only_if is not None and self.only_if.otherwise == "not_applicable"


class Recipe(Term):
    """Rules, and how their scores times their weights become a completion's reward.

    sum, product, minimum: of those that have a score. normalize_then_sum: the sum is
    the reward, but what is compared within a group is each rule by itself, as with
    `advantage.combine` (arXiv:2601.05242). `clip` bounds the reward.
    """

    rules: tuple[RuleSpec, ...] = Field(max_length=MAX_RULES)
    combine: Literal["sum", "normalize_then_sum", "product", "minimum"] = "sum"
    clip: Clip | None = None

    @model_serializer(mode="wrap")
    def _what_is_asked(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return dict(without_defaults(write(self), combine="sum", clip=None))

    @model_validator(mode="after")
    def _rules_make_a_reward(self) -> Self:
        if not self.rules:
            raise ValueError("A reward needs at least one rule. Add one.")
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f'Two rules are named "{twice[0]}". Give each rule its own name.'
            )
        if not any(weight for rule in self.rules for weight in rule.weights):
            raise ValueError(
                "Every rule has weight 0, so every reward would be 0. Set at least "
                "one other weight."
            )
        for rule in self.rules:
            self._check_gate(rule)
        if self.combine == "normalize_then_sum" and self.clip is not None:
            raise ValueError(
                "With each rule normalised separately, clipping their sum has no "
                "effect. Clip the rules, or remove the clip."
            )
        return self

    def _check_gate(self, rule: RuleSpec) -> None:
        gate = rule.only_if
        if gate is None:
            return
        others = {other.name: other for other in self.rules if other is not rule}
        if gate.rule not in others:
            names = ", ".join(others) or "none"
            raise ValueError(
                f'Rule "{rule.name}" depends on "{gate.rule}", which is not another '
                f"rule of the recipe. Choose one: {names}."
            )
        highest = others[gate.rule].own_bounds[1]
        if gate.at_least > highest:
            raise ValueError(
                f'Rule "{rule.name}" requires {gate.at_least:g} of "{gate.rule}", '
                f"whose highest score is {highest:g}. Lower the minimum."
            )

    @property
    def normalizes(self) -> bool:
        """True where each rule is compared by itself."""
        return self.combine == "normalize_then_sum"


def recipe_bounds(recipe: Recipe, *, step: int | None = None) -> tuple[float, float]:
    """Return the lowest and the highest reward the recipe can give when all rules
    score.

    At a step of the run; None: at any.
    """
    intervals = [
        interval
        for rule in recipe.rules
        if (interval := _interval(rule, recipe, step)) is not None
    ]
    low, high = joined(intervals, recipe.combine)
    if recipe.clip is not None:
        low, high = recipe.clip.apply(low), recipe.clip.apply(high)
    return low, high


def bound_tolerance(bound: float) -> float:
    """Return how near to a bound counts as there: weights such as 0.1 do not add up to
    it.
    """
    return 1e-9 * max(1.0, abs(bound))


def judges_several(rule: RuleSpec) -> bool:
    """Return whether a rule is given several completions at once, to compare or to
    send.
    """
    return RULES[rule.kind].score is None or judges_groups(rule)


def scores_alone(rule: RuleSpec) -> bool:
    """Return whether a rule can score a completion without others, and without a model.

    A TRL function can, though it is given all completions of a prompt at once.
    """
    return RULES[rule.kind].score is not None


def check_rules(recipe: Recipe) -> None:
    """Check that all that the rules need beside a completion is there, for a run.

    Raises:
        ValueError: it is not; the text says what.
    """
    for spec in recipe.rules:
        check = RULES[spec.kind].check
        if check is None:
            continue
        try:
            check(spec.checked_params())
        except ValueError as error:
            raise ValueError(f'Rule "{spec.name}": {error}') from None


def needs_models(recipe: Recipe) -> bool:
    """Return whether a rule asks a model, which may fail in the midst of a run."""
    return any(RULES[rule.kind].check is not None for rule in recipe.rules)


def judges_groups(rule: RuleSpec) -> bool:
    """Return whether a rule looks at all completions of a prompt at once."""
    return RULES[rule.kind].judges_groups(rule.checked_params())


def _interval(rule: RuleSpec, recipe: Recipe, step: int | None) -> Interval | None:
    """Between what a rule's part lies; None: it never has one."""
    weights = rule.weights if step is None else [rule.weight_at(step)]
    values = [weight * score for weight in weights for score in rule.bounds]
    is_optional = rule.may_not_apply
    if recipe.combine not in ("sum", "normalize_then_sum"):
        if not any(weights):
            return None  # a product and a minimum are without it
        is_optional = is_optional or 0.0 in weights
    return Interval(min(values), max(values), is_optional)


def is_slow(recipe: Recipe) -> bool:
    """Return whether a rule takes so long that processes of their own are worth it."""
    return any(RULES[rule.kind].is_slow for rule in recipe.rules)


def needs_sandbox(recipe: Recipe) -> bool:
    """Return whether a rule runs code, which only a sandbox may do."""
    return any(RULES[rule.kind].needs_sandbox for rule in recipe.rules)


def reads_token_ids(recipe: Recipe) -> bool:
    """Return whether a rule looks at the token IDs of completions."""
    return any(
        python_function.reads_token_ids(rule.checked_params()) for rule in recipe.rules
    )


def _holds_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(_holds_nul(part) for part in value)
    return isinstance(value, str) and "\x00" in value


def _explain(rule: RuleSpec, error: ValidationError) -> str:
    """Return one sentence for the first fault: rule, parameter, value, what is asked
    for.
    """
    names = ", ".join(RULES[rule.kind].params_model.model_fields)
    sentences = []
    for fault in error.errors():
        name = ".".join(str(part) for part in fault["loc"])
        where = f'Rule "{rule.name}"' + (f", parameter {name}" if name else "")
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = f"{rule.kind} has no such parameter. It has: {names}"
        elif fault["type"] == "missing":
            message = "a value is required"
        elif fault["type"] != "value_error":
            message = f"got {quote(fault['input'])}. {message}"
        sentences.append(f"{where}: {message.rstrip('.')}.")
    return " ".join(sentences)


def answer_reader(recipe: Recipe) -> AnswerReader | None:
    """Return how to read answers under a recipe: as its weightiest answer rule does.

    None when no rule looks for an answer that two completions could share (equations,
    formats and lengths are judged otherwise).
    """
    readers = (
        reader_of(rule.checked_params())
        for rule in sorted(
            recipe.rules, key=lambda rule: -max(abs(weight) for weight in rule.weights)
        )
    )
    return next((reader for reader in readers if reader is not None), None)
