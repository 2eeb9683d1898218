"""A rule of the recipe form: its input and errors."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from dashboard.project.schema_forms import (
    BoundField,
    InvalidValue,
    SchemaField,
    schema_fields,
    unix_lines,
    write_number,
)
from dashboard.rewards.recipe_text import describe, read_schedule, write_schedule
from dashboard.rewards.trial import sandbox_here
from trainer.rewards.function_forms import (
    EXAMPLES,
    TITLES,
    Form,
    RewardFunction,
    is_ambiguous,
    recognise,
    rule_names,
    select,
)
from trainer.rewards.rule import Rule
from trainer.rewards.rules import RULES
from trainer.rewards.sandbox.levels import LEVELS, packages_here
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
FORM_CHOICES = tuple(TITLES.items())
_EXAMPLES = {example.strip() for example in EXAMPLES.values()}
TERM_ERRORS = ("name", "weight", "only_if", "clip", "schedule")


def find_code_fault(source: str) -> str:
    """Return the source's syntax error, with the line, or "". Parsed, never run."""
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
    """Return the syntax error of a rule's source, if it has one."""
    if rule.kind != FUNCTION_KIND:
        return ""
    return find_code_fault(str(rule.params.get("source", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """A source, as the form describes it.

    Attributes:
        called: the function that the rule calls; None: none, or which is not said.
        functions: all reward functions of the source.
        others: the source's other reward functions that no other rule calls.
        refused: functions that are nearly of a form, and why they are not.
        fault: why the source cannot be parsed; "" where it can.
        missing: modules that it imports and the sandbox does not offer.
    """

    called: RewardFunction | None
    functions: tuple[RewardFunction, ...]
    others: tuple[RewardFunction, ...]
    refused: tuple[tuple[str, str], ...]
    fault: str
    missing: tuple[str, ...]

    @property
    def wrongly_annotated(self) -> list[RewardFunction]:
        """The functions whose annotation is another type than their form returns."""
        return [function for function in self.functions if function.wrong_type]


def report_on(
    source: str, function: str, *, in_use: Container[str] = ()
) -> FunctionReport:
    """`in_use`: functions that other rules with this source call."""
    contents = recognise(source)
    try:
        called = select(source, function.strip())
    except ValueError:
        called = None
    offered = {package.partition(" ")[0] for package in list_packages()}
    unknown = contents.imports - sys.stdlib_module_names - offered
    return FunctionReport(
        called=called,
        functions=contents.functions,
        others=tuple(
            other
            for other in contents.functions
            if other.name not in in_use and (called is None or other != called)
        ),
        refused=tuple(contents.refused.items()),
        fault=contents.fault,
        # Without a sandbox nothing is offered, and that is said elsewhere.
        missing=tuple(sorted(unknown)) if sandbox_here().level else (),
    )


def list_packages() -> tuple[str, ...]:
    """List packages that a function may import here, with versions."""
    level = sandbox_here().level
    here = next((candidate for candidate in LEVELS if candidate == level), None)
    if here is None:
        return ()
    packages = packages_here(here).items()
    return tuple(f"{name} {package.version}" for name, package in packages)


def is_example(source: str) -> bool:
    """Tell whether the source is one of the examples, untouched, or empty."""
    text = unix_lines(source).strip()
    return not text or text in _EXAMPLES


def insert_example(source: str, form: Form) -> str:
    """Add a form's example to the source, which replaces another example or follows."""
    text, example = unix_lines(source), EXAMPLES[form]
    if is_example(text):
        return example
    return text if example in text else f"{text.rstrip()}\n\n\n{example}"


@cache
def param_fields(kind: str) -> tuple[SchemaField, ...]:
    return schema_fields(RULES[kind].params_model)


def write_params(kind: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Write every parameter as the form shows it, with defaults filled in."""
    return {
        field.path: field.write(params.get(field.path, field.default))
        for field in param_fields(kind)
    }


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
        names = [kind, *(f"{kind}_{number}" for number in range(2, MAX_RULES + 2))]
        name = next(name for name in names if name not in set(taken))
        return cls(kind, name, "1", write_params(kind, params))

    @classmethod
    def of(cls, spec: RuleSpec) -> RuleDraft:
        texts = write_params(spec.kind, spec.params)
        weight, term = write_number(spec.weight), _term_texts(spec)
        return cls(spec.kind, spec.name, weight, texts, term, keeps_name=True)

    @classmethod
    def posted(cls, data: Mapping[str, str], prefix: str, kind: str) -> RuleDraft:
        texts = {
            # Browsers do not send a switch that is off.
            item.path: unix_lines(data.get(f"{prefix}params-{item.path}", ""))
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
    def fields(self) -> list[BoundField]:
        return [
            BoundField(
                field=item,
                text=self.texts[item.path],
                errors=self.errors.get(item.path, []),
            )
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
        """Its settings are open: one is invalid, or is a program."""
        return self.has_program or any(item.errors for item in self.fields)

    @property
    def has_program(self) -> bool:
        return any(item.field.is_program for item in self.fields)

    @property
    def limits(self) -> list[BoundField]:
        """A program's numbers, which are shown as one line until it is opened."""
        numbers = [item for item in self.fields if item.field.is_number]
        return numbers if self.has_program else []

    @property
    def has_wrong_limits(self) -> bool:
        return any(item.errors for item in self.limits)

    @property
    def is_composed(self) -> bool:
        """It has a gate, clip or schedule, or an error in one."""
        has_errors = not self.errors.keys().isdisjoint(TERM_ERRORS[2:])
        return any(self.term.values()) or has_errors

    @property
    def rule_errors(self) -> list[str]:
        return self.errors.get("", [])

    @property
    def report(self) -> FunctionReport | None:
        """The contents of its source, of a rule that calls a function."""
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
        """It does not say which of its source's functions it calls."""
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
        """Split it: the rule, and one for each other function of its source.

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
            text = self.texts[item.path]
            try:
                values[item.path] = item.read(text)
            except InvalidValue as error:
                self._add_error(item.path, str(error))
                continue
            if item.kind == "choice" and values[item.path] not in (
                None,
                *item.choices,
            ):
                self._add_error(
                    item.path, f"Choose an option from the list; got {text[:60]!r}."
                )
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
        texts["gate_at_least"] = write_number(spec.only_if.at_least)
        if spec.may_not_apply:
            texts["gate_otherwise"] = spec.only_if.otherwise
    return texts


def clip_texts(clip: Clip | None) -> dict[str, str]:
    ends = (clip.low, clip.high) if clip else (None, None)
    return {
        name: write_number(end)
        for name, end in zip(CLIP_FIELDS, ends, strict=True)
        if end is not None
    }


def clip_tree(texts: Mapping[str, str]) -> dict[str, str] | None:
    """Return a clip with the non-empty ends; None without any."""
    ends = {
        name.removeprefix("clip_"): texts[name].strip()
        for name in CLIP_FIELDS
        if texts.get(name, "").strip()
    }
    return ends or None
