"""A recipe's composition as one line that is written, and read again.

    0.5·format + 1·answer clipped to [0, 1] if format ≥ 1, clipped to [0, 1]
    product((1 to 0.2 at step 100)·format, 1·answer if format ≥ 1 else n/a)

Rules stand by their names; their kinds and settings are no part of it. `*`, `-` and
`>=` are read as ·, − and ≥.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, RuleSpec
from trainer.rewards.terms import Clip, Schedule

# How a recipe's ways to combine are called here; a sum is written with its signs.
CALLS = {
    "product": "product",
    "minimum": "minimum",
    "normalised": "normalize_then_sum",
}
MAX_CHARACTERS = 10_000
_TOKEN = re.compile(
    r"\s*(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|\s*(?P<word>n/a|[A-Za-z_][A-Za-z0-9_]*)"
    r"|\s*(?P<sign>>=|[≥·*+−\-()\[\],∞])"
)
_SAME = {"*": "·", "-": "−", ">=": "≥"}


class FormulaError(ValueError):
    """What is wrong with a formula, and at which of its characters, from 0."""

    def __init__(self, text: str, position: int, message: str) -> None:
        seen = text[position : position + 20].strip()
        where = f'at "{seen}"' if seen else "at the end"
        super().__init__(f"Character {position + 1}, {where}: {message}")
        self.position = position


def write_formula(recipe: Recipe) -> str:
    """
    >>> "0.2·format + 1·answer if format ≥ 1, clipped to [0, 1]"
    """
    if recipe.combine == "sum":
        body = _write_sum(recipe.rules)
    else:
        call = next(name for name, value in CALLS.items() if value == recipe.combine)
        body = f"{call}({', '.join(map(_write_term, recipe.rules))})"
    return body + (f", clipped to {write_clip(recipe.clip)}" if recipe.clip else "")


def read_formula(text: str, rules: Sequence[RuleSpec]) -> dict[str, Any]:
    """The tree of a recipe of these rules, composed as the text says.

    A rule that the text leaves out is left out; the name of a kind that none of them
    has adds a rule of that kind. FormulaError says where the text is wrong.
    """
    return _Reader(text, {rule.name: rule for rule in rules}).read()


def _write_sum(rules: Sequence[RuleSpec]) -> str:
    text = ""
    for rule in rules:
        # A schedule stands in brackets, its signs with it.
        is_less = rule.schedule is None and math.copysign(1, rule.weight) < 0
        sign = "−" if is_less else "+"
        term = _write_term(rule).removeprefix("−") if is_less else _write_term(rule)
        text += f" {sign} {term}" if text else (f"−{term}" if is_less else term)
    return text


def _write_term(rule: RuleSpec) -> str:
    text = f"{_write_weight(rule)}·{rule.name}"
    if rule.clip is not None:
        text += f" clipped to {write_clip(rule.clip)}"
    gate = rule.only_if
    if gate is not None:
        text += f" if {gate.rule} ≥ {_write_number(gate.at_least)}"
        text += " else n/a" if gate.otherwise == "not_applicable" else ""
    return text


def _write_weight(rule: RuleSpec) -> str:
    return write_weight(rule.weight, rule.schedule)


def write_weight(weight: float, schedule: Schedule | None) -> str:
    """A weight as it goes: 0.5, or (0.5 to 0.1 at step 200)."""
    start = _write_number(weight)
    return start if schedule is None else f"({start} {write_schedule(schedule)})"


def write_schedule(schedule: Schedule) -> str:
    """How a weight goes on: to 0.1 at step 200."""
    word = "to" if schedule.shape == "linear" else "then"
    return " ".join(
        f"{word} {_write_number(point.weight)} at step {point.step}"
        for point in schedule.points
    )


def read_schedule(text: str) -> dict[str, Any]:
    """The tree of what `write_schedule` writes; FormulaError says where it is wrong."""
    reader = _Reader(text, {})
    reader.tokens = _cut(text)
    schedule = reader.schedule()
    reader.expect_end('expected "to" or "then" again, or the end.')
    return schedule


def write_clip(clip: Clip) -> str:
    low = "−∞" if clip.low is None else _write_number(clip.low)
    high = "∞" if clip.high is None else _write_number(clip.high)
    return f"[{low}, {high}]"


def _write_number(value: float) -> str:
    # Not :g, which would round it.
    return str(value).removesuffix(".0").replace("-", "−", 1 if value < 0 else 0)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, word, sign or end
    text: str
    position: int


@dataclass(slots=True)
class _Reader:
    text: str
    rules: Mapping[str, RuleSpec]
    tokens: list[_Token] = field(default_factory=list)
    place: int = 0

    def read(self) -> dict[str, Any]:
        self.tokens = _cut(self.text)
        tree = self._body()
        if self._takes(","):
            self._expect("clipped", "to")
            tree["clip"] = self._clip()
        self.expect_end(
            'expected + or −, "if", "clipped to", or the end. The reward\'s own clip '
            "stands behind a comma."
        )
        self._check_names(tree["rules"])
        return tree

    def expect_end(self, message: str) -> None:
        if self._now.kind != "end":
            self._refuse(message)

    def _body(self) -> dict[str, Any]:
        combine = CALLS.get(self._now.text)
        if combine is None:
            return {"rules": self._sum()}
        self.place += 1
        self._expect("(")
        rules = [self._term(sign=1)]
        while self._takes(","):
            rules.append(self._term(sign=1))
        self._expect(")")
        return {"rules": rules, "combine": combine}

    def _sum(self) -> list[dict[str, Any]]:
        self._takes("+")
        rules = [self._term(sign=-1 if self._takes("−") else 1)]
        while self._now.text in ("+", "−"):
            rules.append(self._term(sign=-1 if self._next().text == "−" else 1))
        return rules

    def _term(self, *, sign: int) -> dict[str, Any]:
        weight = self._weight()
        if sign < 0:
            weight = _negated(weight)
        self._expect("·")
        token = self._next()
        if token.kind != "word":
            self._refuse("expected the name of a rule.", token)
        rule: dict[str, Any] = {**self._known(token), **weight, "_at": token}
        if self._takes("clipped"):
            self._expect("to")
            rule["clip"] = self._clip()
        if self._takes("if"):
            rule["only_if"] = self._gate()
        return rule

    def _known(self, token: _Token) -> dict[str, Any]:
        """What the composition does not say of the rule."""
        rule = self.rules.get(token.text)
        if rule is not None:
            return {"name": rule.name, "kind": rule.kind, "params": rule.params}
        if token.text in RULES:
            return {"name": token.text, "kind": token.text}
        names = ", ".join(self.rules) or "none yet"
        self._refuse(
            f'there is no rule or kind of rule "{token.text}". The rules are: {names}.',
            token,
        )
        raise AssertionError

    def _weight(self) -> dict[str, Any]:
        if not self._takes("("):
            if self._now.kind == "word":
                self._refuse("expected a weight, such as 1·, before the rule's name.")
            return {"weight": self._number(), "schedule": None}
        weight = self._number()
        schedule = self.schedule()
        self._expect(")")
        return {"weight": weight, "schedule": schedule}

    def schedule(self) -> dict[str, Any]:
        """How a weight goes on: to 0.1 at step 200 to 0 at step 400."""
        shape, word, points = self._shape(), self._now.text, []
        while self._takes(word):
            value = self._number()
            self._expect("at", "step")
            points.append({"step": self._step(), "weight": value})
        return {"shape": shape, "points": points}

    def _shape(self) -> str:
        shape = {"to": "linear", "then": "steps"}.get(self._now.text)
        if shape is None:
            self._refuse('expected "to" or "then" and the next weight.')
        return str(shape)

    def _gate(self) -> dict[str, Any]:
        token = self._next()
        if token.kind != "word":
            self._refuse("expected the name of another rule.", token)
        self._expect("≥")
        gate = {"rule": token.text, "at_least": self._number(), "_at": token}
        if self._takes("else"):
            self._expect("n/a")
            gate["otherwise"] = "not_applicable"
        return gate

    def _clip(self) -> dict[str, Any]:
        self._expect("[")
        low = self._number(may_be_endless=True)
        self._expect(",")
        high = self._number(may_be_endless=True)
        self._expect("]")
        ends = {"low": low, "high": high}
        return {name: end for name, end in ends.items() if math.isfinite(end)}

    def _number(self, *, may_be_endless: bool = False) -> float:
        is_less, token = self._takes("−"), self._next()
        if token.text == "∞" and may_be_endless:
            value = math.inf
        elif token.kind == "number":
            value = float(token.text)
            if math.isinf(value):
                self._refuse("this number is too large.", token)
        else:
            self._refuse("expected a number.", token)
        return -value if is_less else value

    def _step(self) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdecimal():
            self._refuse("expected a step, a whole number.", token)
        return int(token.text[:20])

    def _check_names(self, rules: list[dict[str, Any]]) -> None:
        names = [rule["name"] for rule in rules]
        for place, rule in enumerate(rules):
            token = rule.pop("_at")
            if rule["name"] in names[:place]:
                self._refuse(f'"{rule["name"]}" stands here a second time.', token)
            if "only_if" not in rule:
                continue
            gate_token = rule["only_if"].pop("_at")
            others = [name for name in names if name != rule["name"]]
            if gate_token.text not in others:
                known = ", ".join(others) or "there is none"
                self._refuse(
                    f'"{gate_token.text}" is no other rule of this formula ({known}).',
                    gate_token,
                )

    @property
    def _now(self) -> _Token:
        return self.tokens[self.place]

    def _next(self) -> _Token:
        token = self._now
        if token.kind != "end":
            self.place += 1
        return token

    def _takes(self, text: str) -> bool:
        is_there = self._now.text == text
        self.place += is_there
        return is_there

    def _expect(self, *texts: str) -> None:
        for text in texts:
            if not self._takes(text):
                self._refuse(f"expected {text}")

    def _refuse(self, message: str, token: _Token | None = None) -> Any:
        raise FormulaError(self.text, (token or self._now).position, message)


def _negated(weight: dict[str, Any]) -> dict[str, Any]:
    schedule = weight["schedule"]
    if schedule is not None:
        points = [p | {"weight": -p["weight"]} for p in schedule["points"]]
        schedule = schedule | {"points": points}
    return {"weight": -weight["weight"], "schedule": schedule}


def _cut(text: str) -> list[_Token]:
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(text, MAX_CHARACTERS, "the formula is too long.")
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise FormulaError(text, start, "nothing here begins like this.")
        kind = str(match.lastgroup)
        found = match.group(kind)
        tokens.append(_Token(kind, _SAME.get(found, found), match.start(kind)))
        position = match.end()
    return [*tokens, _Token("end", "", end)]
