"""Rules that compare the answer with the row's: as text, number or mathematics."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import (
    TAG_NAME,
    ExtractionParams,
    as_typed,
    extract,
    find_part,
    reply_of,
    require_answer,
    thinking_field,
    unwrapped,
)
from trainer.rewards.judge import JudgeFailed, ask
from trainer.rewards.numbers import last_number, only_number, read_number
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    Unscorable,
    compile_pattern,
)


class ExactAnswerParams(ExtractionParams):
    ignore_case: bool = Field(True, description="Ignore upper and lower case.")
    white_space: Literal["strip", "collapse", "remove"] = Field(
        "collapse",
        description="strip: remove white space at both ends. collapse: also replace "
        "runs of it with one space. remove: remove it all.",
    )
    ignore_final_period: bool = Field(
        True, description="Ignore a full stop at the end of either text."
    )


def score_exact(sample: Sample, params: ExactAnswerParams) -> float:
    """Return 1 when the texts are equal after the chosen normalisation, else 0."""
    wanted = normalise(require_answer(sample), params)
    answer = extract(reply_of(sample, read_thinking=params.read_thinking), params)
    return float(answer is not None and normalise(answer, params) == wanted)


def normalise(text: str, params: ExactAnswerParams) -> str:
    """Return the same for all texts that count as one another."""
    text = unwrapped(as_typed(text), params.tag)
    if params.ignore_final_period:
        text = text.removesuffix(".").rstrip()
    if params.white_space != "strip":
        text = (" " if params.white_space == "collapse" else "").join(text.split())
    return text.casefold() if params.ignore_case else text


EXACT_ANSWER = Rule(
    kind="exact_answer",
    title="Exact answer",
    summary=(
        "The answer equals the row's answer; letter case and spaces may be ignored."
    ),
    params_model=ExactAnswerParams,
    score=score_exact,
    compares_answer=True,
    example_pass=Example(
        sample=Sample("Capital of France?", "<answer>Paris</answer>", "paris")
    ),
    example_fail=Example(
        sample=Sample("Capital of France?", "<answer>Lyon</answer>", "paris")
    ),
)


class NumericAnswerParams(Params):
    source: Literal["last_number", "tags", "boxed", "marker"] = Field(
        "last_number",
        title="Location",
        description="The last number of the completion, or the last number inside the "
        "answer tags, inside \\boxed{}, or on the line after a marker.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Tag name without brackets."
    )
    marker: str = Field(
        "####",
        min_length=1,
        max_length=100,
        description="Text before the answer. The last occurrence counts.",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        le=1_000_000_000,
        description="Absolute tolerance: largest allowed distance to the row's answer.",
    )
    relative_tolerance: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "Relative tolerance, as a share of the row's answer. The larger "
            "tolerance counts."
        ),
    )
    percent: Literal["ignore", "divide"] = Field(
        "ignore", description="Read 50% as 50, or as 0.5."
    )
    wrong_score: float = Field(
        0.0, ge=-1, le=0, description="Score of a wrong or missing answer."
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: numbers in usual notation. as_published: the last run of "
        "digits, decimal or fraction of the completion, without its sign "
        "and thousands separators (Simple GRPO).",
    )
    read_thinking: bool = thinking_field()


def score_number(sample: Sample, params: NumericAnswerParams) -> float:
    """Return 1 when |found - wanted| <= max(tolerance,
    relative * |wanted|), else wrong_score.

    Both numbers are exact fractions: 0.1 + 0.2 is 0.3 here.
    """
    answer = require_answer(sample)
    # GSM8K keeps the worked solution in the answer, the number after a marker.
    wanted = read_number(answer, percent=params.percent)
    if wanted is None:
        after = answer.rpartition(params.marker)[2]
        wanted = only_number(after, percent=params.percent)
    if wanted is None:
        raise NotApplicable(
            f'The row\'s answer "{answer[:80]}" is not a number. Give a number such '
            "as 42, -1,234.5, 3/4 or 50%, or use the exact answer rule."
        )
    is_whole = params.read_thinking or params.mode == "as_published"
    number = find_number(reply_of(sample, read_thinking=is_whole), params)
    allowed = max(
        Fraction(params.tolerance), Fraction(params.relative_tolerance) * abs(wanted)
    )
    is_right = number is not None and abs(number - wanted) <= allowed
    return 1.0 if is_right else params.wrong_score


def find_number(completion: str, params: NumericAnswerParams) -> Fraction | None:
    """Get the number that counts as a completion's answer; None where there is none."""
    if params.mode == "as_published":
        # -7 reads as 7 here and 1,000 as 0: the published pattern has digits alone.
        runs = compile_pattern(r"\d+\.\d+|\d+/\d+|\d+").findall(completion)
        return read_number(runs[-1]) if runs else None
    text = find_part(completion, params.source, tag=params.tag, marker=params.marker)
    return None if text is None else last_number(text, percent=params.percent)


NUMERIC_ANSWER = Rule(
    kind="numeric_answer",
    title="Numeric answer",
    summary="The answer equals the row's number, in any notation.",
    params_model=NumericAnswerParams,
    score=score_number,
    compares_answer=True,
    bounds=lambda params: (params.wrong_score, 1.0),
    example_pass=Example(
        sample=Sample("How much?", "Together they cost $1,250.00.", "1250")
    ),
    example_fail=Example(sample=Sample("How much?", "Together they cost 12.", "1250")),
    also_pass=(
        Example(sample=Sample("How warm?", "It is −5 °C.", "-5")),
        Example(sample=Sample("How many?", "合計は１２です。", "12")),
        Example(sample=Sample("How much?", "CHF 12\u202f500", "12500")),
        Example(sample=Sample("How much?", r"$1{,}200$", "1200")),
        Example(sample=Sample("Which area?", "It is 24 cm^2.", "24")),
        Example(sample=Sample("How fast?", r"$3 \times 10^8$ m/s", "300000000")),
    ),
)


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
        description="strict: the answer at its location, in LaTeX or plain text. "
        "as_published: well-formed LaTeX anywhere in the completion, "
        "boxed first (Open R1).",
    )


def score_math(sample: Sample, params: MathVerifyParams) -> float:
    """Return 1 when math-verify finds the answer equal to the row's answer, else 0.

    Only the last 4,000 characters of the answer are read.
    """
    reference = require_answer(sample)
    is_published = params.mode == "as_published"
    is_whole = params.read_thinking or is_published
    text = reply_of(sample, read_thinking=is_whole)
    answer = text if is_published else extract(text, params)
    question = {
        "reference": reference[:_MAX_CHARACTERS],
        "text": (answer or "")[-_MAX_CHARACTERS:],
        "is_bare": params.source != "whole",
        "as_published": is_published,
    }
    try:
        reply = ask("math_verify", question, timeout_seconds=params.timeout_seconds)
    except JudgeFailed as error:
        raise Unscorable(str(error)) from error
    if not reply["is_readable"]:
        raise NotApplicable(
            f'The row\'s answer "{reference[:80]}" cannot be parsed as mathematics. '
            "Write it as a number or LaTeX, or use the exact answer rule."
        )
    return float(reply["is_right"])


MATH_VERIFY = Rule(
    kind="math_verify",
    title="Math answer",
    summary="The answer is mathematically equal to the row's answer: 1/2, 0.5 and "
    "\\frac{1}{2} are the same.",
    params_model=MathVerifyParams,
    score=score_math,
    compares_answer=True,
    example_pass=Example(
        sample=Sample("Half?", "<answer>$\\frac{2}{4}$</answer>", "1/2")
    ),
    example_fail=Example(sample=Sample("Half?", "<answer>$0.4$</answer>", "1/2")),
    is_slow=True,
)
