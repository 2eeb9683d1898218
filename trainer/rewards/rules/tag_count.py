"""How many of the wanted tags does the completion have?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample

_NAME = "[A-Za-z][A-Za-z0-9_-]{0,31}"


class TagCountParams(Params):
    names: str = Field(
        "think,answer",
        pattern=f"^{_NAME}(,{_NAME}){{0,7}}$",
        description="Tags that are looked for, in their order, separated by commas; "
        "each has an opening and a closing one.",
    )
    count: Literal["once", "present"] = Field(
        "once",
        description="A tag counts when it occurs exactly once, or at least once.",
    )
    line_breaks: Literal["any", "between"] = Field(
        "any",
        description="between: a tag counts with the line breaks that part it from the "
        "text before and behind it.",
    )


def score_tags(sample: Sample, params: TagCountParams) -> float:
    """Tags that count, opening and closing ones alike, as a share of all wanted.

    Their order is not looked at.
    """
    wanted = _wanted(params)
    counts = [sample.completion.count(tag) for tag in wanted]
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
        ("\n" if place > 0 else "") + tag + ("\n" if place < last else "")
        for place, tag in enumerate(tags)
    ]


RULE = Rule(
    kind="tag_count",
    title="Tag count",
    summary="The completion has the wanted tags; each gives an equal share.",
    params_model=TagCountParams,
    score=score_tags,
    example_pass=Example(
        sample=Sample("2+2?", "<think>two twos</think><answer>4</answer>", "4")
    ),
    example_fail=Example(sample=Sample("2+2?", "<think>two twos <answer>4", "4")),
)
