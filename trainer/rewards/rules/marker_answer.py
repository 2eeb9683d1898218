"""The rule for an answer after a marker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import (
    after_marker,
    reply_of,
    require_answer,
    thinking_field,
)
from trainer.rewards.numbers import only_number
from trainer.rewards.rule import Example, Params, Rule, Sample, compile_pattern

# Longer answers are no numbers that anyone means.
_MAX_CHARACTERS = 100


class MarkerAnswerParams(Params):
    marker: str = Field(
        "####",
        min_length=1,
        max_length=100,
        description="Text before the answer. The last occurrence counts.",
    )
    until: str = Field(
        "",
        max_length=100,
        description="Text that must follow the answer. Empty: the answer ends with "
        "its line.",
    )
    tail_characters: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="Number of characters at the end to read. 0: all.",
        json_schema_extra={"unit": "characters"},
    )
    left_out: str = Field(
        "",
        max_length=20,
        description="Characters to ignore in both answers, such as ,$.",
    )
    number_credit: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Score of an answer with another text, but with exactly one "
        "number, which equals the row's.",
    )
    wrong_score: float = Field(
        0.0, ge=-1, le=1, description="Score of any other answer."
    )
    missing_score: float = Field(
        0.0, ge=-1, le=1, description="Score of a completion without an answer."
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: numbers in usual notation. as_published: what the "
        "published grader extracts and compares.",
    )
    published_by: Literal["verl", "lm_book"] = Field(
        "verl", description="Published grader that as_published follows."
    )
    read_thinking: bool = thinking_field()


def score_marker(sample: Sample, params: MarkerAnswerParams) -> float:
    """Return 1 for the row's answer, `number_credit` for its number written otherwise.

    strict: the text between the last marker and `until`. as_published, verl: the last
    number that follows the marker and a space, compared as text. as_published,
    lm_book: the same text as strict, but "..." is no answer, and a number is a run of
    digits with at most one point and a sign.
    """
    # GSM8K keeps the worked solution in the answer, the number after a marker.
    wanted = _plain(require_answer(sample).rpartition("####")[2], params)
    is_whole = params.read_thinking or params.mode == "as_published"
    answer = read_marked(reply_of(sample, read_thinking=is_whole), params)
    if answer is None:
        return params.missing_score
    if answer == wanted:
        return 1.0
    reader = _reader(params)
    number = reader.number(answer)
    if number is not None and number == reader.number(wanted):
        return params.number_credit
    return params.wrong_score


def read_marked(completion: str, params: MarkerAnswerParams) -> str | None:
    """Give the text that counts as a completion's answer; None where there is none."""
    if params.tail_characters:
        completion = completion[-params.tail_characters :]
    marked = _reader(params).find(completion)
    return None if marked is None else _plain(marked, params)


def same_answer(text: str, params: MarkerAnswerParams) -> str:
    """Return the same for all answers that the rule takes for one another."""
    number = _reader(params).number(text)
    return text if number is None else str(number)


@dataclass(frozen=True)
class _Strict:
    params: MarkerAnswerParams

    def find(self, text: str) -> str | None:
        return after_marker(text, self.params.marker, until=self.params.until)

    def number(self, text: str) -> Fraction | None:
        return only_number(text)


class _LMBook(_Strict):
    """The published grader, with its own idea of placeholders and numbers."""

    def find(self, text: str) -> str | None:
        answer = super().find(text)
        return None if answer is None or answer.strip() == "..." else answer

    def number(self, text: str) -> Fraction | None:
        runs = compile_pattern(r"-?\d*\.?\d+").findall(text)
        if len(runs) != 1 or len(runs[0]) > _MAX_CHARACTERS:
            return None
        return Fraction(runs[0])


class _Verl(_Strict):
    """It takes the last marker that a number follows, and compares text alone."""

    def find(self, text: str) -> str | None:
        pattern = compile_pattern(rf"{re.escape(self.params.marker)} (-?[0-9.,]+)")
        last: str | None = None
        for match in pattern.finditer(text):
            last = match.group(1)
        return last

    def number(self, text: str) -> Fraction | None:
        return None


def _reader(params: MarkerAnswerParams) -> _Strict:
    if params.mode == "strict":
        return _Strict(params)
    return _Verl(params) if params.published_by == "verl" else _LMBook(params)


def _plain(text: str, params: MarkerAnswerParams) -> str:
    for character in params.left_out:
        text = text.replace(character, "")
    return text.strip()


RULE = Rule(
    kind="marker_answer",
    title="Answer after a marker",
    summary=(
        "The text after the marker equals the row's answer, as text or as a number."
    ),
    params_model=MarkerAnswerParams,
    score=score_marker,
    compares_answer=True,
    bounds=lambda params: (
        min(0.0, params.wrong_score, params.missing_score),
        1.0,
    ),
    example_pass=Example(sample=Sample("How much?", "6 times 7 is 42.\n#### 42", "42")),
    example_fail=Example(sample=Sample("How much?", "6 times 7 is 42.\n#### 41", "42")),
    also_pass=(Example(sample=Sample("How much?", "#### −1,200", "-1200")),),
)
