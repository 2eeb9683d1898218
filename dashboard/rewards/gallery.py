"""The rules and templates to choose from, with examples that the rules scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache

from dashboard.rewards.rule_params import as_text, param_fields
from dashboard.rewards.trial import Trial, try_groups
from trainer.rewards.rule import Example, Rule, answers_of
from trainer.rewards.rules import RULES, examples_of
from trainer.rewards.spec import Recipe

MAX_SECONDS = 8.0  # for the examples of one rule
CACHE_SECONDS = 86_400
RETRY_SECONDS = 60  # where an example was not scored, as without a sandbox
CATEGORIES: dict[str, tuple[str, ...]] = {
    "Answer": (
        *("numeric_answer", "exact_answer", "math_verify", "multiple_choice"),
        *("marker_answer", "reasoning_answer", "majority", "countdown", "equations"),
        "reasoning_gym",
    ),
    "Format": (
        *("format_tags", "tag_count", "reasoning_steps", "json_schema"),
        "xml_well_formed",
    ),
    "Text": ("contains", "regex", "language", "script", "repetition"),
    "Length": ("length", "soft_overlong", "cosine_length", "length_rank"),
    "Code": ("python_function", "code_tests"),
    "Models": ("llm_judge", "reward_model"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """Rules to start from: kind, weight and parameters of each."""

    key: str
    title: str
    rules: tuple[tuple[str, str, Mapping[str, Any]], ...]

    @property
    def kind(self) -> str:
        """Of the rule that reads the answer."""
        return self.rules[0][0]


NEEDS_SETTINGS = ("json_schema",)


def _template(key: str, title: str, kind: str, *, tags: bool = False) -> Template:
    # The example's settings where a rule has none that work without them.
    params = RULES[kind].example_pass.params if kind in NEEDS_SETTINGS else {}
    rules: list[tuple[str, str, Mapping[str, Any]]] = [(kind, "1", params)]
    if tags:
        rules.append(("format_tags", "0.2", {}))
    return Template(key=key, title=title, rules=tuple(rules))


TEMPLATES = {
    template.key: template
    for template in (
        _template("exact", "Exact answer", "exact_answer", tags=True),
        _template("number", "Number", "numeric_answer", tags=True),
        _template("maths", "Maths", "math_verify", tags=True),
        _template("choice", "Multiple choice", "multiple_choice", tags=True),
        _template("code", "Code tests", "code_tests"),
        _template("json", "JSON", "json_schema"),
        _template("judge", "LLM judge", "llm_judge"),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredExample:
    """One of a rule's examples with the score that the rule gives. Empty: missing."""

    is_passing: bool
    prompt: str
    completion: str
    answer: str
    columns: str
    others: tuple[str, ...]  # completions to compare with
    settings: tuple[tuple[str, str], ...]  # label and text of changed settings
    long_settings: tuple[tuple[str, str], ...]  # with several lines
    score: float | None
    problem: str  # why there is no score


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedRule:
    rule: Rule[Any]
    passing: ScoredExample
    failing: ScoredExample
    more: tuple[ScoredExample, ...]

    @property
    def is_same_row(self) -> bool:
        """Whether both examples differ in nothing but their completion."""
        one, other = (
            (each.prompt, each.answer, each.columns, each.others, each.settings)
            for each in (self.passing, self.failing)
        )
        return one == other


def offered_rules() -> list[tuple[str, list[OfferedRule]]]:
    """The rules by category."""
    scored = _scored()
    return [
        (title, [_offered(RULES[kind], scored[kind]) for kind in kinds])
        for title, kinds in CATEGORIES.items()
    ]


def _offered(rule: Rule[Any], examples: Sequence[ScoredExample]) -> OfferedRule:
    passing = next(example for example in examples if example.is_passing)
    failing = next(example for example in examples if not example.is_passing)
    shown = (passing, failing)
    more = tuple(example for example in examples if example not in shown)
    return OfferedRule(rule=rule, passing=passing, failing=failing, more=more)


def offered_templates() -> list[tuple[Template, ScoredExample, ScoredExample]]:
    """Each with the examples of its first rule."""
    scored = _scored()
    offered = []
    for template in TEMPLATES.values():
        each = _offered(RULES[template.kind], scored[template.kind])
        offered.append((template, each.passing, each.failing))
    return offered


def _scored() -> dict[str, list[ScoredExample]]:
    """The examples of each rule; scored once for a release, by the trial process."""
    shown = repr([(kind, examples_of(rule)) for kind, rule in RULES.items()])
    key = f"rule-examples-{hashlib.sha256(shown.encode()).hexdigest()}"
    found: dict[str, list[ScoredExample]] | None = cache.get(key)
    if found is None:
        found = {kind: _score(kind) for kind in RULES}
        is_whole = all(
            example.score is not None
            for kind, examples in found.items()
            if RULES[kind].batching is None
            for example in examples
        )
        cache.set(key, found, CACHE_SECONDS if is_whole else RETRY_SECONDS)
    return found


def _score(kind: str) -> list[ScoredExample]:
    passing, failing = examples_of(RULES[kind])
    given = [
        *((example, True) for example in passing),
        *((example, False) for example in failing),
    ]
    return [
        _scored_example(kind, example, _try(kind, example), is_passing=is_passing)
        for example, is_passing in given
    ]


def _try(kind: str, example: Example) -> Trial:
    if RULES[kind].batching is not None:
        return Trial(None, problem="Needs a model")
    rule = {"name": "rule", "kind": kind, "params": example.params}
    recipe = Recipe.model_validate({"rules": [rule]})
    tried = try_groups(recipe, [example.group], seconds=MAX_SECONDS, owner="examples")
    return tried[0][0]


def _scored_example(
    kind: str, example: Example, trial: Trial, *, is_passing: bool
) -> ScoredExample:
    sample = example.sample
    settings = [
        (field.label, text.replace("\n", ", ") if field.kind == "lines" else text)
        for field in param_fields(kind)
        if field.name in example.params
        and (text := as_text(example.params[field.name], field.kind))
    ]
    problems = trial.score.errors.values() if trial.score else [trial.problem]
    return ScoredExample(
        is_passing=is_passing,
        prompt=sample.prompt,
        completion=sample.completion,
        answer=", ".join(answers_of(sample.answer)),
        columns=json.dumps(dict(sample.columns), ensure_ascii=False)
        if sample.columns
        else "",
        others=example.others,
        settings=tuple(each for each in settings if "\n" not in each[1]),
        long_settings=tuple(each for each in settings if "\n" in each[1]),
        score=trial.score.total if trial.score else None,
        problem=next(iter(problems), ""),
    )
