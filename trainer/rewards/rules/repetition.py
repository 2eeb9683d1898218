"""The rule for repetition."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.rewards.rule import Example, Params, Rule, Sample


class RepetitionParams(Params):
    unit: Literal["words", "characters"] = Field(
        "words",
        description="Unit of the n-grams: words separated by white space, or "
        "characters, for languages without spaces, such as Chinese.",
    )
    ngram_size: int = Field(
        3,
        ge=1,
        le=20,
        description="Length of the n-grams.",
        json_schema_extra={"unit": "words or characters"},
    )
    max_penalty: float = Field(
        -1.0,
        ge=-100,
        le=0,
        description="Limit of the penalty for a completion that only repeats itself.",
    )
    ignore_case: bool = Field(True, description="Ignore upper and lower case.")


def score_repetition(sample: Sample, params: RepetitionParams) -> float:
    """max_penalty * (1 - different runs / all runs) (arXiv:2502.03373, appendix C.2).

    0 for a completion that is shorter than one run.

    >>> "a b a b a", ngram_size 2: ab ba ab ba, 2 of 4 differ, half the penalty
    """
    text = sample.completion.lower() if params.ignore_case else sample.completion
    runs = _runs(text.split(), params)
    if not runs:
        return 0.0
    num_repeated = len(runs) - len(set(runs))
    # Nothing repeated is 0, not -0.
    return 0.0 + params.max_penalty * num_repeated / len(runs)


def _runs(words: list[str], params: RepetitionParams) -> list[str] | list[tuple[str]]:
    size = params.ngram_size
    if params.unit == "characters":
        text = "".join(words)
        return [text[start : start + size] for start in range(len(text) - size + 1)]
    return list(zip(*(words[start:] for start in range(size)), strict=False))


RULE = Rule(
    kind="repetition",
    title="Repetition",
    summary="A penalty: the share of repeated n-grams in the completion.",
    params_model=RepetitionParams,
    score=score_repetition,
    bounds=lambda params: (params.max_penalty, 0.0),
    example_pass=Example(sample=Sample("Why?", "Because the sky scatters blue light.")),
    example_fail=Example(sample=Sample("Why?", "Because it is. " * 4)),
)
