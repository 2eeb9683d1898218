"""The rules and templates to choose from, with examples that the rules scored."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.rewards.rule_editor import param_fields
from dashboard.rewards.trial import try_groups
from trainer.rewards.rule import Example, Rule, answers_of
from trainer.rewards.rules import RULES, examples_of
from trainer.rewards.spec import Recipe

SCORES = Path(__file__).with_name("example_scores.json")
MAX_SECONDS = 30.0  # for an example
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
    "Environment": ("environment", "turn_rewards"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """Rules to start from: kind, weight and parameters of each."""

    key: str
    title: str
    rules: tuple[tuple[str, str, Mapping[str, Any]], ...]

    @property
    def kind(self) -> str:
        """The kind of the rule that reads the answer."""
        return self.rules[0][0]


def _template(key: str, title: str, kind: str, *, tags: bool = False) -> Template:
    # The example's settings where a rule has none that work without them.
    params = RULES[kind].example_pass.params if kind == "json_schema" else {}
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
        _template("python", "Python function", "python_function"),
        _template("json", "JSON", "json_schema"),
        _template("judge", "LLM judge", "llm_judge"),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredExample:
    """An example of a rule with the score that the rule gives. Empty: missing."""

    is_passing: bool
    prompt: str
    completion: str
    answer: str
    columns: str
    others: tuple[str, ...]  # completions to compare with
    settings: tuple[tuple[str, str], ...]  # label and text of changed settings
    long_settings: tuple[tuple[str, str], ...]  # with several lines
    score: float | None  # None: a model gives it


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedRule:
    rule: Rule[Any]
    passing: ScoredExample
    failing: ScoredExample
    more: tuple[ScoredExample, ...]

    @property
    def is_same_row(self) -> bool:
        """Both examples differ in nothing but their completion."""
        passing, other = (
            (
                example.prompt,
                example.answer,
                example.columns,
                example.others,
                example.settings,
            )
            for example in (self.passing, self.failing)
        )
        return passing == other


@functools.cache  # they change with the release only
def offered_rules() -> tuple[tuple[str, tuple[OfferedRule, ...]], ...]:
    """Return the rules by category."""
    return tuple(
        (title, tuple(map(offered, kinds))) for title, kinds in CATEGORIES.items()
    )


@functools.cache
def offered_templates() -> tuple[tuple[Template, OfferedRule], ...]:
    """Return each with the rule that reads the answer."""
    return tuple((template, offered(template.kind)) for template in TEMPLATES.values())


def offered(kind: str) -> OfferedRule:
    passing, failing = examples_of(RULES[kind])
    scores = read_scores()[kind]
    examples = [
        _scored_example(kind, example, score, is_passing=number < len(passing))
        for number, (example, score) in enumerate(
            zip([*passing, *failing], scores, strict=True)
        )
    ]
    return OfferedRule(
        rule=RULES[kind],
        passing=examples.pop(0),
        failing=examples.pop(len(passing) - 1),
        more=tuple(examples),
    )


def read_scores() -> dict[str, list[float | None]]:
    """Return what each rule gave its examples, as `score_examples` found it."""
    scores: dict[str, list[float | None]] = json.loads(SCORES.read_text())
    return scores


def score_examples() -> dict[str, list[float | None]]:
    """Ask each rule; seconds, so `make docs` does it and not a page. Models: None."""
    return {
        kind: [_score(kind, example) for example in _examples(kind)] for kind in RULES
    }


def are_scores_stale() -> bool:
    """Tell whether rules or examples came or went since the scores were written."""
    sizes = {kind: len(scores) for kind, scores in read_scores().items()}
    return sizes != {kind: len(_examples(kind)) for kind in RULES}


def _examples(kind: str) -> list[Example]:
    passing, failing = examples_of(RULES[kind])
    return [*passing, *failing]


def _score(kind: str, example: Example) -> float | None:
    if RULES[kind].batching is not None:
        return None
    rule = {"name": "rule", "kind": kind, "params": example.params}
    recipe = Recipe.model_validate({"rules": [rule]})
    ((trial, *_),) = try_groups(recipe, [example.group], seconds=MAX_SECONDS)
    if trial.score is None or trial.score.total is None:
        raise RuntimeError(f"{kind} did not score an example: {trial}")
    return round(trial.score.total, 6)


def _scored_example(
    kind: str, example: Example, score: float | None, *, is_passing: bool
) -> ScoredExample:
    sample = example.sample
    settings = [
        (field.title, text.replace("\n", ", ") if field.kind == "lines" else text)
        for field in param_fields(kind)
        if field.path in example.params
        and (text := field.write(example.params[field.path]))
    ]
    return ScoredExample(
        is_passing=is_passing,
        prompt=sample.prompt,
        completion=sample.completion,
        answer=", ".join(answers_of(sample.answer)),
        columns=json.dumps(dict(sample.columns), ensure_ascii=False)
        if sample.columns
        else "",
        others=example.others,
        settings=tuple(setting for setting in settings if "\n" not in setting[1]),
        long_settings=tuple(setting for setting in settings if "\n" in setting[1]),
        score=score,
    )
