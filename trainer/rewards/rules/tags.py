"""Rules for tags in a completion."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.rewards.extraction import open_tag
from trainer.rewards.rule import (
    Example,
    Params,
    Rule,
    Sample,
    compile_pattern,
    refuse_bad_pattern,
)

_SEPARATORS = {"space": r"\s*", "blank": r"[ \n]*", "newline": r"\n", "nothing": ""}
_ENDS = {"allowed": r"\s*", "final_newline": r"\n?", "refused": ""}
_TAG_OR_EMPTY = r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$"


class FormatTagsParams(Params):
    think_tag: str = Field(
        "think",
        pattern=_TAG_OR_EMPTY,
        description="Tag around the thinking. Empty: only an answer block is required.",
    )
    answer_tag: str = Field(
        "answer",
        pattern=_TAG_OR_EMPTY,
        description="Tag around the answer. Empty: any text may follow the thinking.",
    )
    completion_prefix: str = Field(
        "",
        max_length=1_000,
        description="Start of the completion that the prompt already contains. It "
        "counts as part of the completion. Empty: a think tag at the prompt's end. "
        "No effect where the row begins the answer.",
    )
    separator: Literal["space", "blank", "newline", "nothing"] = Field(
        "space",
        description="Text between the blocks: any or no white space, any or no spaces "
        "and line breaks, exactly one line break, or nothing.",
    )
    line_breaks: Literal["any", "inside"] = Field(
        "any",
        description="inside: tags and text are on separate lines.",
    )
    outer_space: Literal["allowed", "final_newline", "refused"] = Field(
        "allowed", title="Outer whitespace", description="Before and after the tags."
    )
    repeated_tags: Literal["refused", "refused_in_think", "allowed"] = Field(
        "refused",
        description="refused: each tag exactly once. refused_in_think: no think tag "
        "inside the thinking. allowed: any tags inside the blocks.",
    )
    think_credit: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Score of a think block if the whole format does not match.",
    )
    answer_credit: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Score of an answer block if the whole format does not match.",
    )
    answer_pattern: str = Field(
        "",
        max_length=1_000,
        description="Regular expression that the whole answer must match for the full "
        "score. Empty: any answer.",
    )
    other_answer_score: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Score if the format matches, but not the answer pattern.",
    )
    mismatch_score: float = Field(
        0.0,
        ge=-1,
        le=0,
        description="Score if neither the format matches nor a block gives credit.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="as_published: with line_breaks = inside, further lines may follow "
        "the answer block (Open R1).",
    )

    _check_pattern = field_validator("answer_pattern")(refuse_bad_pattern)

    @model_validator(mode="after")
    def _a_tag_is_asked_for(self) -> Self:
        if not self.think_tag and not self.answer_tag:
            raise ValueError("Neither block has a tag. Set think_tag or answer_tag.")
        return self


def score_format(sample: Sample, params: FormatTagsParams) -> float:
    """Return 1 for a full match; else the sum of the credits, at most 1, or
    mismatch_score.
    """
    prefix = "" if sample.begun else params.completion_prefix
    text = (prefix or open_tag(sample.prompt)) + sample.text
    answer = _match(text, params)
    if answer is None:
        credit = 0.0
        if params.think_tag and _has_block(text, params.think_tag):
            credit += params.think_credit
        if params.answer_tag and _has_block(text, params.answer_tag):
            credit += params.answer_credit
        return min(1.0, credit) or params.mismatch_score
    pattern = params.answer_pattern
    if pattern and compile_pattern(pattern).fullmatch(answer.strip()) is None:
        return params.other_answer_score
    return 1.0


def _match(text: str, params: FormatTagsParams) -> str | None:
    """Return the answer block's content when the whole text has the format."""
    match = compile_pattern(_full_pattern(params)).fullmatch(text)
    if match is None:
        return None
    if params.repeated_tags == "refused" and any(
        text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1
        for tag in (params.think_tag, params.answer_tag)
        if tag
    ):
        return None
    thinking = match.group("thinking") if params.think_tag else ""
    if params.repeated_tags == "refused_in_think" and (
        f"<{params.think_tag}>" in thinking or f"</{params.think_tag}>" in thinking
    ):
        return None
    return str(match.group("answer"))


def _full_pattern(params: FormatTagsParams) -> str:
    edge = r"\n" if params.line_breaks == "inside" else ""
    end = _ENDS[params.outer_space]
    if params.mode == "as_published" and params.line_breaks == "inside":
        end = r"(?:\n.*)?"
    pattern = r"(?P<answer>.*)"
    if params.answer_tag:
        answer = re.escape(params.answer_tag)
        pattern = f"<{answer}>{edge}(?P<answer>.*?){edge}</{answer}>{end}"
    if params.think_tag:
        think = re.escape(params.think_tag)
        between = _SEPARATORS[params.separator]
        block = f"<{think}>{edge}(?P<thinking>.*?){edge}</{think}>"
        pattern = f"{block}{between}{pattern}"
    before = r"\s*" if params.outer_space == "allowed" else ""
    return f"(?s){before}{pattern}"


def _has_block(text: str, tag: str) -> bool:
    start = text.find(f"<{tag}>")
    return start >= 0 and text.find(f"</{tag}>", start) >= 0


FORMAT_TAGS = Rule(
    kind="format_tags",
    title="Format tags",
    summary="The completion is a think block followed by an answer block, and nothing "
    "else.",
    params_model=FormatTagsParams,
    score=score_format,
    bounds=lambda params: (params.mismatch_score, 1.0),
    example_pass=Example(
        sample=Sample("2+2?", "<think>two twos</think>\n<answer>4</answer>", "4")
    ),
    example_fail=Example(sample=Sample("2+2?", "The answer is 4.", "4")),
    also_pass=(
        Example(
            sample=Sample(
                "2+2?\n<think>\n", "two twos</think>\n<answer>4</answer>", "4"
            )
        ),
    ),
)


_NAME = "[A-Za-z][A-Za-z0-9_-]{0,31}"


class TagCountParams(Params):
    names: str = Field(
        "think,answer",
        pattern=f"^{_NAME}(,{_NAME}){{0,7}}$",
        description="Tag names in order, separated by commas. Each has an opening and "
        "a closing tag.",
    )
    count: Literal["once", "present"] = Field(
        "once",
        description=(
            "once: a tag counts if it occurs exactly once. present: at least once."
        ),
    )
    line_breaks: Literal["any", "between"] = Field(
        "any",
        description="between: a tag counts only with line breaks between it and the "
        "text around it.",
    )


def score_tags(sample: Sample, params: TagCountParams) -> float:
    """Tags that count, opening and closing ones alike, as a share of all wanted.

    Their order is not looked at.
    """
    wanted = _wanted(params)
    text = open_tag(sample.prompt) + sample.text
    counts = [text.count(tag) for tag in wanted]
    if params.count == "once":
        counted = sum(count == 1 for count in counts)
    else:
        counted = sum(count > 0 for count in counts)
    return counted / len(wanted)


def _wanted(params: TagCountParams) -> list[str]:
    tags = [
        tag for name in params.names.split(",") for tag in (f"<{name}>", f"</{name}>")
    ]
    if params.line_breaks == "any":
        return tags
    last = len(tags) - 1
    return [
        ("\n" if index > 0 else "") + tag + ("\n" if index < last else "")
        for index, tag in enumerate(tags)
    ]


TAG_COUNT = Rule(
    kind="tag_count",
    title="Tag count",
    summary="The completion has the required tags. Each counts equally.",
    params_model=TagCountParams,
    score=score_tags,
    example_pass=Example(
        sample=Sample("2+2?", "<think>two twos</think><answer>4</answer>", "4")
    ),
    example_fail=Example(sample=Sample("2+2?", "<think>two twos <answer>4", "4")),
    also_pass=(
        Example(sample=Sample("2+2?\n<think>\n", "two</think><answer>4</answer>", "4")),
    ),
)
