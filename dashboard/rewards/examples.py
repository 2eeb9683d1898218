"""A rule's two examples, as its part of the editor shows them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dashboard.rewards.params import as_text, param_fields
from trainer.rewards.rule import Example
from trainer.rewards.rules import RULES


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownExample:
    """Texts; an empty one is not there."""

    verdict: str
    prompt: str
    completion: str
    answer: str
    columns: str
    others: tuple[str, ...]  # completions beside it, where they are compared
    settings: tuple[tuple[str, str], ...]  # label and text of those that it sets
    long_settings: tuple[tuple[str, str], ...]  # those of several lines


def shown_examples(kind: str) -> list[ShownExample]:
    rule = RULES[kind]
    return [
        _shown(kind, rule.example_pass, "Scores as high as can be"),
        _shown(kind, rule.example_fail, "Scores less"),
    ]


def _shown(kind: str, example: Example, verdict: str) -> ShownExample:
    sample = example.sample
    settings = [
        (field.label, _on_one_line(text) if field.kind == "lines" else text)
        for field in param_fields(kind)
        if field.name in example.params
        and (text := as_text(example.params[field.name], field.kind))
    ]
    return ShownExample(
        verdict=verdict,
        prompt=sample.prompt,
        completion=sample.completion,
        answer=sample.answer or "",
        columns=_as_json(dict(sample.columns)),
        others=example.others,
        settings=tuple(each for each in settings if "\n" not in each[1]),
        long_settings=tuple(each for each in settings if "\n" in each[1]),
    )


def _as_json(values: dict[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False) if values else ""


def _on_one_line(text: str) -> str:
    return text.replace("\n", ", ")
