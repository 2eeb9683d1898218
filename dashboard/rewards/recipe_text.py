"""Recipes as text: a formula, a sentence, JSON; and whether two are equal.

A formula as pages, exports and the API show it:

    0.5·format + 1·answer clipped to [0, 1] if format ≥ 1, clipped to [0, 1]
    product((1 to 0.2 at step 100)·format, 1·answer if format ≥ 1 else n/a)

Formulas contain the names of rules, not their kinds and settings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.project.errors import UserError
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, RuleSpec
from trainer.rewards.terms import Clip, Schedule

Spec = dict[str, Any]

# Names of combinations; a sum is written with signs.
CALLS = {
    "product": "product",
    "minimum": "minimum",
    "normalize_then_sum": "normalised",
}
PHRASES = {
    "code_tests": "code passes the row's tests",
    "contains": "{verb} of the phrases",
    "cosine_length": "is correct and short",
    "countdown": "equation reaches the target",
    "environment": "reward of the environment",
    "exact_answer": "answer matches exactly",
    "format_tags": "uses {tags}",
    "json_schema": "is JSON that matches the schema",
    "language": "is written in {language}",
    "length_rank": "is correct and shorter than the others",
    "length": "is {minimum:,} to {maximum:,} {unit} long",
    "llm_judge": "score of the judge {model}",
    "majority": "agrees with the majority",
    "math_verify": "answer is mathematically correct",
    "multiple_choice": "chooses the correct option",
    "numeric_answer": "answer is numerically correct",
    "python_function": "score of a Python function",
    "reasoning_answer": "answer after the reasoning is correct",
    "reasoning_gym": "score of the reasoning-gym task",
    "reasoning_steps": "shows {num_steps:,} steps",
    "regex": "{verb} /{pattern}/",
    "repetition": "repeats no {ngram_size}-gram of {unit}",
    "reward_model": "score of the reward model {path}",
    "script": "is written in {scripts}",
    "soft_overlong": "stays below {limit:,} {unit}",
    "turn_rewards": "{of} of the turns' rewards",
    "xml_well_formed": "is well-formed XML",
}
LISTS = {
    "product": "the product of",
    "minimum": "the minimum of",
    "normalize_then_sum": "the sum, each normalised within its group, of",
}
MATCH_VERBS = {
    "contains": "contains",
    "whole": "is",
    "absent": "avoids",
    "all": "contains all",
    "any": "contains one",
    "none": "contains none",
    "share": "contains a share",
}
SHAPES = {"to": "linear", "then": "steps"}
_POINT = re.compile(
    r"\s*(?P<word>to|then)\s+(?P<sign>[-−]?)"
    r"(?P<weight>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"\s+at\s+step\s+(?P<step>[0-9]{1,20})(?!\S)"
)
MAX_FORMULA = 10_000  # characters
_NUMBER = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_RANGE = rf"\[\s*(-∞|{_NUMBER})\s*,\s*(∞|{_NUMBER})\s*\]"
_TERM = re.compile(
    rf"""\s*(?P<sign>[+-]?)\s*
    (?:(?:(?P<weight>{_NUMBER})|\(\s*(?P<start>{_NUMBER})\s+(?P<schedule>[^()]+?)\s*\))
       \s*[·*×]\s*)?
    (?P<name>[a-z][a-z0-9_]*)
    (?:\s+clipped\s+to\s+{_RANGE})?
    (?:\s+if\s+(?P<gate>[a-z][a-z0-9_]*)\s*(?:≥|>=)\s*(?P<at_least>{_NUMBER})
       (?P<otherwise>\s+else\s+n/a)?)?
    \s*""",
    re.VERBOSE | re.IGNORECASE,
)
_CALL = re.compile(r"\s*(product|minimum|normalised)\s*\((.*)\)\s*", re.DOTALL)
_WHOLE_CLIP = re.compile(rf"\s*,\s*clipped\s+to\s+{_RANGE}\s*$", re.IGNORECASE)


@dataclass(slots=True)
class Formula:
    """A formula as the form's fields; of a rule its weight and its term."""

    combine: str = "sum"
    clip: dict[str, str] = field(default_factory=dict)
    terms: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)


def read_formula(text: str, names: Collection[str]) -> Formula:
    """Invert `write_formula`; `*`, `>=` and `-` are read too.

    Args:
        names: those that terms may have.

    Raises:
        UserError: it quotes where the formula cannot be read.
    """
    text = text[:MAX_FORMULA].replace("−", "-")
    formula = Formula()
    if whole := _WHOLE_CLIP.search(text):
        formula.clip = _clip_fields(*whole.groups())
        text = text[: whole.start()]
    if call := _CALL.fullmatch(text):
        formula.combine = next(key for key, name in CALLS.items() if name == call[1])
        text = call[2]
    position = 0
    while position < len(text) or not formula.terms:
        has_comma = text[position : position + 1] == ","
        is_list = formula.combine != "sum" and bool(formula.terms)
        match = _TERM.match(text, position + (is_list and has_comma))
        is_separate = has_comma if is_list else match and match["sign"]
        if match is None or (formula.terms and not is_separate):
            raise UserError(
                "rewards.bad_formula",
                f'Invalid formula at "{text[position:].strip()[:30]}". Write it as '
                "1·answer + 0.2·format.",
            )
        _add_term(formula, match, names)
        position = match.end()
    return formula


def _add_term(formula: Formula, match: re.Match[str], names: Collection[str]) -> None:
    name = match["name"]
    if name not in names:
        raise UserError(
            "rewards.formula_unknown_rule",
            f'No rule is named "{name}". Add the rule first.',
        )
    if name in formula.terms:
        raise UserError(
            "rewards.formula_duplicate", f'The formula has "{name}" twice. Remove one.'
        )
    weight = match["weight"] or match["start"] or "1"
    if match["sign"] == "-":
        weight = weight.removeprefix("-") if weight[0] == "-" else f"-{weight}"
    term = _clip_fields(*match.groups()[5:7])
    if match["schedule"]:
        term["schedule"] = match["schedule"].replace("-", "−")
    if match["gate"]:
        term |= {"gate_rule": match["gate"], "gate_at_least": match["at_least"]}
        term |= {"gate_otherwise": "not_applicable"} if match["otherwise"] else {}
    formula.terms[name] = (weight, term)


def _clip_fields(low: str | None, high: str | None) -> dict[str, str]:
    ends = {"clip_low": low, "clip_high": high}
    return {name: end for name, end in ends.items() if end and "∞" not in end}


def write_formula(recipe: Recipe) -> str:
    """
    >>> "0.2·format + 1·answer if format ≥ 1, clipped to [0, 1]"
    """
    if recipe.combine == "sum":
        body = _write_sum(recipe.rules)
    else:
        terms = ", ".join(map(_write_term, recipe.rules))
        body = f"{CALLS[recipe.combine]}({terms})"
    return body + (f", clipped to {write_clip(recipe.clip)}" if recipe.clip else "")


def _write_sum(rules: Sequence[RuleSpec]) -> str:
    text = ""
    for rule in rules:
        # A schedule is in brackets, with its signs.
        is_less = rule.schedule is None and math.copysign(1, rule.weight) < 0
        sign = "−" if is_less else "+"
        term = _write_term(rule).removeprefix("−") if is_less else _write_term(rule)
        text += f" {sign} {term}" if text else (f"−{term}" if is_less else term)
    return text


def _write_term(rule: RuleSpec) -> str:
    text = f"{write_weight(rule.weight, rule.schedule)}·{rule.name}"
    if rule.clip is not None:
        text += f" clipped to {write_clip(rule.clip)}"
    gate = rule.only_if
    if gate is not None:
        text += f" if {gate.rule} ≥ {_write_number(gate.at_least)}"
        text += " else n/a" if gate.otherwise == "not_applicable" else ""
    return text


def write_weight(weight: float, schedule: Schedule | None) -> str:
    """Write 0.5, or with a schedule (0.5 to 0.1 at step 200)."""
    start = _write_number(weight)
    return start if schedule is None else f"({start} {write_schedule(schedule)})"


def write_schedule(schedule: Schedule) -> str:
    """to 0.1 at step 200"""
    word = "to" if schedule.shape == "linear" else "then"
    return " ".join(
        f"{word} {_write_number(point.weight)} at step {point.step}"
        for point in schedule.points
    )


def read_schedule(text: str) -> dict[str, Any]:
    """Read `write_schedule`'s text as a tree; UserError quotes the error.

    >>> read_schedule("to 0.1 at step 200 to 0 at step 400")
    """
    points: list[dict[str, Any]] = []
    words: set[str] = set()
    position, text = 0, text.rstrip()
    while position < len(text) or not points:
        match = _POINT.match(text, position)
        if match is None or len(words | {match["word"]}) > 1:
            again = " or ".join(f'"{word} 0.1 at step 200"' for word in words or SHAPES)
            raise UserError(
                "rewards.bad_schedule",
                f'Invalid weight schedule at "{text[position:].strip()[:20]}". '
                f"Write {again}.",
            )
        words.add(match["word"])
        weight = float(match["weight"]) * (-1 if match["sign"] else 1)
        points.append({"step": int(match["step"]), "weight": weight})
        position = match.end()
    return {"shape": SHAPES[words.pop()], "points": points}


def write_clip(clip: Clip) -> str:
    low = "−∞" if clip.low is None else _write_number(clip.low)
    high = "∞" if clip.high is None else _write_number(clip.high)
    return f"[{low}, {high}]"


def _write_number(value: float) -> str:
    # Not :g, which would round it.
    return str(value).removesuffix(".0").replace("-", "−", 1 if value < 0 else 0)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in pairs:
        if key in tree:
            raise UserError(
                "rewards.duplicate_key",
                f"Duplicate key {key[:40]!r} in an object. Remove one of the two.",
            )
        tree[key] = value
    return tree


def read_json(text: str) -> Any:
    """Parse JSON; UserError has line and column of an error."""
    try:
        text = text.removeprefix("\ufeff")  # the byte order mark of some editors
        return json.loads(text, object_pairs_hook=_each_key_once)
    except json.JSONDecodeError as error:
        raise UserError(
            "rewards.bad_json",
            f"Invalid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
        ) from None
    except UserError:
        raise
    except (ValueError, RecursionError):
        raise UserError(
            "rewards.bad_json",
            "This JSON is nested too deeply or contains a number that is too long. "
            "Shorten it.",
        ) from None


def write_json(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)


def read_recipe(text: str) -> Recipe:
    """Parse a recipe; ValueError with one error per line."""
    tree = read_json(text)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            path = ".".join(map(str, problem["loc"]))
            lines.append(": ".join(filter(None, (path, describe(problem)))))
        raise ValueError("\n".join(lines)) from None


def describe(problem: Any) -> str:
    """Write a pydantic error as a sentence with the value seen."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return message
    if problem["type"] == "string_too_short" and not problem["input"]:
        return "A value is required."
    if problem["type"] == "string_pattern_mismatch":
        message = f"Must match {problem['ctx']['pattern']}"
    seen = repr(problem["input"])
    seen = seen if len(seen) <= 60 else f"{seen[:59]}…"
    return f"{message}; got {seen}."


def is_same_reward(one: Spec, other: Spec) -> bool:
    """Missing parameters have their defaults; names of rules do not count."""
    kinds = [[rule["kind"] for rule in spec["rules"]] for spec in (one, other)]
    return kinds[0] == kinds[1] and _without_names(one) == _without_names(other)


def _without_names(spec: Spec) -> Spec:
    """Return the recipe with all defaults, and rules by number instead of name."""
    tree = Recipe.model_validate(spec).model_dump(mode="json")
    numbers = {rule["name"]: number for number, rule in enumerate(tree["rules"])}
    for rule in tree["rules"]:
        rule["name"] = numbers[rule["name"]]
        if gate := rule.get("only_if"):
            gate["rule"] = numbers[gate["rule"]]
    return tree


def recipe_sentence(recipe: Recipe) -> str:
    """
    >>> "1 × answer is numerically correct + 0.2 × uses think and answer tags"
    """
    text = " ".join(
        f"{'−' if rule.weight < 0 and rule.schedule is None else '+'} {_term(rule)}"
        for rule in recipe.rules
    )
    if recipe.combine in LISTS:
        terms = [_term(rule, is_listed=True) for rule in recipe.rules]
        text = f"{LISTS[recipe.combine]} {'; '.join(terms)}"
    if recipe.clip is not None:
        text += f", clipped to {write_clip(recipe.clip)}"
    return text.removeprefix("+ ")


def _term(rule: RuleSpec, *, is_listed: bool = False) -> str:
    """Write a rule with its weight; in lists, the sign is part of the weight."""
    weight = f"{rule.weight if is_listed else abs(rule.weight):g}".replace("-", "−")
    if rule.schedule is not None:
        weight = write_weight(rule.weight, rule.schedule)
    text = f"{weight} × {_phrase(rule)}"
    if rule.clip is not None:
        text += f" (clipped to {write_clip(rule.clip)})"
    gate = rule.only_if
    if gate is not None:
        text += f", only if {gate.rule} ≥ {gate.at_least:g}"
        text += " (not counted otherwise)" if rule.may_not_apply else ""
    return text


def _phrase(spec: RuleSpec) -> str:
    rule = RULES.get(spec.kind)
    if rule is None:
        return spec.name
    params = rule.params_model.model_validate(spec.params).model_dump()
    template = PHRASES.get(spec.kind, rule.title.lower())
    verb = MATCH_VERBS.get(str(params.get("match")), "matches")
    names = [params.get("think_tag"), params.get("answer_tag")]
    tags = [name for name in names if name]
    words = f"{' and '.join(tags)} tag{'s' if len(tags) > 1 else ''}"
    return template.format(**params, tags=words, verb=verb)
