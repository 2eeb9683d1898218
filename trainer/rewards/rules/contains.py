"""Rules for phrases and patterns in a completion."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainer.rewards.extraction import open_tag
from trainer.rewards.rule import (
    Example,
    Params,
    Rule,
    Sample,
    compile_pattern,
    refuse_bad_pattern,
)

# RE2's \b knows ASCII letters alone, and would find "fé" in "fée".
_EDGE = r"[^\pL\pM\pN_]"
# A form has a line for each; one of white space alone cannot be seen there.
_LINE = r"^[^\r\n]*[^\s][^\r\n]*$"


class ContainsParams(Params):
    phrases: tuple[Annotated[str, Field(pattern=_LINE, max_length=200)], ...] = Field(
        min_length=1,
        max_length=50,
        description="Texts to search for, one per line.",
    )
    match: Literal["all", "any", "none", "share"] = Field(
        "all",
        description="all: all of them occur. any: at least one. none: none of them. "
        "share: the score is the share that occurs.",
    )
    ignore_case: bool = Field(True, description="Ignore upper and lower case.")
    whole_words: bool = Field(
        False,
        description=(
            "Match whole words only: no letter, digit or underscore next to the phrase."
        ),
    )


def score_phrases(sample: Sample, params: ContainsParams) -> float:
    """Return 1 when the phrases occur as asked, else 0; the share that occurs for
    share.
    """
    num_found = sum(_occurrences(open_tag(sample.prompt) + sample.text, params))
    if params.match == "share":
        return num_found / len(params.phrases)
    if params.match == "none":
        return float(num_found == 0)
    needed = 1 if params.match == "any" else len(params.phrases)
    return float(num_found >= needed)


def _occurrences(text: str, params: ContainsParams) -> list[bool]:
    """Tell for each phrase whether it occurs, in time linear in the text."""
    if params.whole_words:
        return [_stands_alone(text, phrase, params) for phrase in params.phrases]
    folded = text.casefold() if params.ignore_case else text
    return [
        (phrase.casefold() if params.ignore_case else phrase) in folded
        for phrase in params.phrases
    ]


def _stands_alone(text: str, phrase: str, params: ContainsParams) -> bool:
    pattern = f"(?:^|{_EDGE}){re.escape(phrase)}(?:$|{_EDGE})"
    compiled = compile_pattern(pattern, ignore_case=params.ignore_case)
    return compiled.search(text) is not None


CONTAINS = Rule(
    kind="contains",
    title="Phrases",
    summary="The completion contains phrases, or avoids them.",
    params_model=ContainsParams,
    score=score_phrases,
    example_pass=Example(
        sample=Sample("Refund?", "Sorry, your refund is on its way."),
        params={"phrases": ["sorry", "refund"]},
    ),
    example_fail=Example(
        sample=Sample("Refund?", "Sorry, no."), params={"phrases": ["sorry", "refund"]}
    ),
)


class RegexParams(Params):
    pattern: str = Field(
        min_length=1,
        max_length=1_000,
        description="Regular expression in RE2's syntax; (?s) lets . match a line "
        "break.",
    )
    match: Literal["contains", "whole", "absent"] = Field(
        "contains",
        description=(
            "contains: the pattern occurs. whole: it matches the whole "
            "completion. absent: it does not occur."
        ),
    )
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")

    _check_pattern = field_validator("pattern")(refuse_bad_pattern)


def score_regex(sample: Sample, params: RegexParams) -> float:
    """Return 1 when the pattern matches as asked, else 0."""
    pattern = compile_pattern(params.pattern, ignore_case=params.ignore_case)
    # With and without a think tag that the prompt opens: patterns are written for both.
    texts = {sample.text, open_tag(sample.prompt) + sample.text}
    if params.match == "whole":
        return float(any(pattern.fullmatch(text) is not None for text in texts))
    occurs = any(pattern.search(text) is not None for text in texts)
    return float(occurs is (params.match == "contains"))


REGEX = Rule(
    kind="regex",
    title="Pattern",
    summary="The completion contains, matches, or avoids a regular expression.",
    params_model=RegexParams,
    score=score_regex,
    example_pass=Example(
        sample=Sample("Date?", "It was 2024-05-01."),
        params={"pattern": r"\d{4}-\d{2}-\d{2}"},
    ),
    example_fail=Example(
        sample=Sample("Date?", "It was in May."),
        params={"pattern": r"\d{4}-\d{2}-\d{2}"},
    ),
)
