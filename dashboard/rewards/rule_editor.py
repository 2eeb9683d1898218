"""A rule of the recipe form: its input and errors."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from dashboard.rewards.function_editor import (
    FORM_CHOICES,
    FunctionReport,
    insert_example,
    is_example,
    list_packages,
    report_on,
)
from dashboard.rewards.recipe_text import describe, read_schedule, write_schedule
from dashboard.rewards.rule_params import (
    InvalidValue,
    ParamField,
    as_texts,
    as_value,
    param_fields,
)
from dashboard.rewards.trial import sandbox_here
from trainer.rewards.function_forms import EXAMPLES, Form, is_ambiguous, rule_names
from trainer.rewards.rule import Rule
from trainer.rewards.rules import RULES
from trainer.rewards.spec import MAX_RULES, RuleSpec
from trainer.rewards.terms import Clip

CLIP_FIELDS = ("clip_low", "clip_high")
TERM_FIELDS = (
    "gate_rule",
    "gate_at_least",
    "gate_otherwise",
    "schedule",
    *CLIP_FIELDS,
)
FUNCTION_KIND = "python_function"
UNNAMED_FUNCTION = re.compile(rf"{FUNCTION_KIND}(_\d+)?")
TERM_ERRORS = ("name", "weight", "only_if", "clip", "schedule")


def find_code_fault(source: str) -> str:
    """The syntax error of the source, with the line, or "". Parsed, never run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()[:60]
        return (
            f"Line {error.lineno} is not valid Python: {error.msg}; got {line!r}. "
            "Fix the line."
        )
    except (ValueError, RecursionError, MemoryError):
        return "The code is nested too deeply to parse. Reduce the nesting."
    return ""


def find_fault(rule: RuleSpec) -> str:
    """The syntax error of a rule's source, if it has one."""
    if rule.kind != FUNCTION_KIND:
        return ""
    return find_code_fault(str(rule.params.get("source", "")))


@dataclass(slots=True)
class DraftField:
    """One input of one rule, as a template shows it."""

    field: ParamField
    text: str
    errors: list[str]

    @property
    def is_changed(self) -> bool:
        # Browsers send line ends as CR LF.
        return self.text.replace("\r\n", "\n") != self.field.default


@dataclass(slots=True)
class RuleDraft:
    kind: str
    name: str
    weight: str
    texts: dict[str, str]
    term: dict[str, str] = field(default_factory=dict)  # by the names of TERM_FIELDS
    # By parameter, or by TERM_ERRORS; "" is the whole rule.
    errors: dict[str, list[str]] = field(default_factory=dict)
    spec: RuleSpec | None = None
    prefix: str = ""  # of its fields' names; set by the recipe
    in_use: frozenset[str] = frozenset()  # as for `report_on`; set by the recipe
    keeps_name: bool = False  # as one that runs have logged already
    is_renamed: bool = False  # its form still has the name before

    @classmethod
    def new(
        cls, kind: str, taken: Iterable[str], params: Mapping[str, Any]
    ) -> RuleDraft:
        return cls(kind, _free_name(kind, set(taken)), "1", as_texts(kind, params))

    @classmethod
    def of(cls, spec: RuleSpec) -> RuleDraft:
        texts = as_texts(spec.kind, spec.params)
        weight, term = _plain(spec.weight), _term_texts(spec)
        return cls(spec.kind, spec.name, weight, texts, term, keeps_name=True)

    @classmethod
    def posted(cls, data: Mapping[str, str], prefix: str, kind: str) -> RuleDraft:
        texts = {
            # Browsers do not send a switch that is off.
            item.name: data.get(f"{prefix}params-{item.name}", "")
            for item in param_fields(kind)
        }
        name, weight = data.get(f"{prefix}name", ""), data.get(f"{prefix}weight", "")
        term = {field: data.get(f"{prefix}{field}", "") for field in TERM_FIELDS}
        keeps_name = data.get(f"{prefix}keeps_name") == "on"
        return cls(kind, name.strip(), weight, texts, term, keeps_name=keeps_name)

    @property
    def rule(self) -> Rule[Any]:
        return RULES[self.kind]

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
    def num_errors(self) -> int:
        return sum(map(len, self.errors.values()))

    @property
    def is_open(self) -> bool:
        """Whether its settings are open: one is invalid, or is a program."""
        return any(item.errors or item.field.is_program for item in self.fields)

    @property
    def name_errors(self) -> list[str]:
        return self.errors.get("name", [])

    @property
    def weight_errors(self) -> list[str]:
        return self.errors.get("weight", [])

    @property
    def is_composed(self) -> bool:
        """Whether it has a gate, clip or schedule, or an error in one."""
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
    def report(self) -> FunctionReport | None:
        """What its source holds, of a rule that calls a function."""
        if self.kind != FUNCTION_KIND:
            return None
        source, function = self.texts["source"], self.texts["function"]
        return report_on(source, function, in_use=self.in_use)

    @property
    def form_choices(self) -> tuple[tuple[Form, str], ...]:
        return FORM_CHOICES

    @property
    def packages(self) -> tuple[str, ...]:
        return list_packages()

    @property
    def is_unnamed(self) -> bool:
        """Whether it does not say which of its source's functions it calls."""
        return (
            self.kind == FUNCTION_KIND
            and not self.texts["function"].strip()
            and is_ambiguous(self.texts["source"])
        )

    def name_after_function(self, taken: Iterable[str]) -> None:
        """Name a new rule after the function that it calls, unless it has a name."""
        report = self.report
        is_own = report is not None and not is_example(self.texts["source"])
        if self.keeps_name or not is_own or not UNNAMED_FUNCTION.fullmatch(self.name):
            return
        if report and report.called:
            (self.name,) = rule_names([report.called], set(taken) - {self.name})
            self.is_renamed = True

    def insert_example(self, form: str) -> None:
        if self.kind == FUNCTION_KIND and form in dict(FORM_CHOICES):
            self.texts["source"] = insert_example(self.texts["source"], form)
            if self.texts["source"] == EXAMPLES[form]:
                self.texts["function"] = ""  # it named one of what was replaced

    def split(self, taken: Iterable[str]) -> list[RuleDraft]:
        """The rule, and one for each other function of its source.

        Each names its function, and is named after it unless it has a name of its own.
        """
        report = self.report
        if report is None or not report.others:
            return [self]
        functions = [report.called] if report.called else []
        functions += report.others
        has_own_name = not UNNAMED_FUNCTION.fullmatch(self.name)
        names = rule_names(functions, set(taken) - {self.name})
        if has_own_name:
            names[0] = self.name
        return [
            replace(
                self,
                name=name,
                texts=self.texts | {"function": function.name},
                term=dict(self.term) if number == 0 else {},
                errors={},
                in_use=frozenset(),
            )
            for number, (function, name) in enumerate(
                zip(functions, names, strict=True)
            )
        ]

    @property
    def sandbox_problem(self) -> str:
        """Why this machine cannot run it; "" if it can, or needs no sandbox."""
        return sandbox_here().problem if self.rule.needs_sandbox else ""

    def validate(self) -> None:
        """Set `spec`, or `errors` by field."""
        self.errors, self.spec = {}, None
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
            self._add_errors(error, known=TERM_ERRORS)
        else:
            if fault := find_fault(self.spec):
                self._add_error("source", fault)

    def _term(self) -> dict[str, Any]:
        """Gate, clip and schedule as a tree."""
        texts = {name: text.strip() for name, text in self.term.items()}
        tree: dict[str, Any] = {"clip": clip_tree(texts)}
        if texts.get("gate_rule"):
            tree["only_if"] = {
                "rule": texts["gate_rule"],
                "at_least": texts.get("gate_at_least") or "1",
                "otherwise": texts.get("gate_otherwise") or "zero",
            }
        if texts.get("schedule"):
            try:
                tree["schedule"] = read_schedule(texts["schedule"])
            except ValueError as error:
                self._add_error("schedule", str(error))
        return tree

    def _params(self) -> dict[str, Any]:
        values = {}
        for item in param_fields(self.kind):
            try:
                values[item.name] = as_value(item, self.texts[item.name])
            except InvalidValue as error:
                self._add_error(item.name, str(error))
        if self.errors:
            return {}
        try:
            params = self.rule.params_model.model_validate(values)
        except ValidationError as error:
            self._add_errors(error, known=tuple(values))
            return {}
        checked: dict[str, Any] = params.model_dump(mode="json")
        return checked

    def _add_errors(self, error: ValidationError, known: tuple[str, ...]) -> None:
        for problem in error.errors(include_url=False):
            name = str(problem["loc"][0]) if problem["loc"] else ""
            if name in known:
                self._add_error(name, describe(problem))
            elif not self.errors:
                # Parameters have their own errors.
                self._add_error("", describe(problem))

    def _add_error(self, name: str, message: str) -> None:
        self.errors.setdefault(name, []).append(message)


def _term_texts(spec: RuleSpec) -> dict[str, str]:
    texts = clip_texts(spec.clip)
    if spec.schedule is not None:
        texts["schedule"] = write_schedule(spec.schedule)
    if spec.only_if is not None:
        texts["gate_rule"] = spec.only_if.rule
        texts["gate_at_least"] = _plain(spec.only_if.at_least)
        if spec.may_not_apply:
            texts["gate_otherwise"] = spec.only_if.otherwise
    return texts


def clip_texts(clip: Clip | None) -> dict[str, str]:
    ends = (clip.low, clip.high) if clip else (None, None)
    return {
        name: _plain(end)
        for name, end in zip(CLIP_FIELDS, ends, strict=True)
        if end is not None
    }


def clip_tree(texts: Mapping[str, str]) -> dict[str, str] | None:
    """A clip with the non-empty ends; None without any."""
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
