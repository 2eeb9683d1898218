"""Is the answer mathematically equal to the row's answer?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import ExtractionParams, extract, require_answer
from trainer.rewards.judge import JudgeFailed, ask
from trainer.rewards.rule import Example, Rule
from trainer.rewards.sample import NotApplicable, Sample, Unscorable

# The answer stands at the end; parsing time grows faster than the length.
_MAX_CHARACTERS = 4_000


class MathVerifyParams(ExtractionParams):
    timeout_seconds: float = Field(
        5.0,
        ge=0.1,
        le=60,
        description="An answer that takes longer to check gets no score.",
        json_schema_extra={"unit": "seconds"},
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: the answer where it should stand, in LaTeX or plain. "
        "as_published: well-formed LaTeX anywhere in the completion, boxed first (Open "
        "R1).",
    )


def score_math(sample: Sample, params: MathVerifyParams) -> float:
    """1 when math-verify finds the answer equal to the row's answer, else 0.

    Only the last 4,000 characters of the answer are read.
    """
    reference = require_answer(sample)
    is_published = params.mode == "as_published"
    found = sample.completion if is_published else extract(sample.completion, params)
    question = {
        "reference": reference[:_MAX_CHARACTERS],
        "text": (found or "")[-_MAX_CHARACTERS:],
        "is_bare": params.source != "whole",
        "as_published": is_published,
    }
    try:
        reply = ask("math_verify", question, timeout_seconds=params.timeout_seconds)
    except JudgeFailed as error:
        raise Unscorable(str(error)) from error
    if not reply["is_readable"]:
        raise NotApplicable(
            f'The row\'s answer "{reference[:80]}" is not mathematics that can be '
            "read. Write it as a number or LaTeX, or use the exact answer rule."
        )
    return float(reply["is_right"])


RULE = Rule(
    kind="math_verify",
    title="Math answer",
    summary="The answer equals the row's answer as mathematics: 1/2, 0.5 and "
    "\\frac{1}{2} are the same.",
    params_model=MathVerifyParams,
    score=score_math,
    example_pass=Example(
        sample=Sample("Half?", "<answer>$\\frac{2}{4}$</answer>", "1/2")
    ),
    example_fail=Example(sample=Sample("Half?", "<answer>$0.4$</answer>", "1/2")),
    is_slow=True,
)
