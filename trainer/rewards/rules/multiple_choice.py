"""The rule for multiple choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import Field

from trainer.rewards.extraction import (
    TAG_NAME,
    find_part,
    last_line,
    reply_of,
    require_answer,
    thinking_field,
    unwrapped,
)
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    column_of,
    compile_pattern,
    quote,
    replace_surrogates,
)

# Longer texts name no single option.
_MAX_CHARACTERS = 4_000
_ALONE = r"[(\[]?([A-Za-z])[)\]]?[.:]?"
_MARKED = r"\b([A-Z])[)\].:]"
_BARE = r"\b([A-Z])\b"
_BARE_AND_WORD = rf"{_BARE}(\s+[a-z])?"
_LEADING = r"[(\[]?([A-Za-z])[)\].:]+\s*((?s).*)"
_LETTERED = r"[(\[]?([A-Z])[)\].:]\s*((?s).+)"
_LETTER = r"[*_(\[]*\b[A-Z]\b[*_)\]]*"
_AND = r"\s*(?:,|\band\b|\bor\b|\bnor\b)\s*"
_WRONG = r"(?:wrong|incorrect|false|impossible|ruled out)"
_RIGHT = r"(?:correct|right|the answer)"
# Options that are ruled out: "not B", "neither A nor B", "A and B are wrong".
_RULED_OUT = (
    r"\b(?i:not|cannot|can['’]t|neither|nor|isn['’]t|aren['’]t|rather than|instead of"
    r"|rul(?:e[ds]?|ing) out|eliminat(?:e[ds]?|ing))\s+"
    rf"(?:(?i:option|choice|answer|the|be|is)\s+)*{_LETTER}(?:{_AND}{_LETTER})*"
    rf"|{_LETTER}\s+(?:is\s+{_WRONG}|(?:is\s+not|isn['’]t)\s+{_RIGHT})"
    rf"|{_LETTER}(?:{_AND}{_LETTER})+\s+are\s+(?:{_WRONG}|not\s+{_RIGHT})"
)
_CHOOSING = (
    r"(?i:so|thus|hence|therefore|the|my|final|correct|right|best|option|choice|answer"
    r"|one|is|be|must|it|it['’]s|I|I['’]d|choose|pick|select|say)"
)
# Groups: one choice and no other text, and its reason, which may name other options.
_REASONED = (
    rf"(?s)((?:{_CHOOSING}[\s,:]+)*[*_(\[]*\b[A-Za-z]\b[*_)\].:]*(?:\s+{_CHOOSING})*)"
    r",?\s+(?i:because|since|as|due to)\b(.*)"
)
_OTHER_CHOICE = (
    r"(?i:\b(?:or|also|and|but|well|maybe|perhaps|either|both|however|actually|wait)\b)"
    r"|(?s)(?:;|[.!?]\s|\b(?i:so|thus|hence|therefore)\b).*\b[A-Z]\b"
)
# Words of one letter, when a word in lower case follows: "A better reason is".
_WORDS = {"A", "I"}


class MultipleChoiceParams(Params):
    source: Literal["tags", "boxed", "marker", "last_letter"] = Field(
        "tags",
        title="Choice location",
        description="The last pair of answer tags, the last \\boxed{}, the line after "
        "the last marker, or anywhere: the last single capital letter.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Tag name without brackets."
    )
    marker: str = Field(
        "Answer:",
        min_length=1,
        max_length=100,
        description="Text before the choice, in any letter case unless case counts. "
        "The last occurrence counts.",
    )
    num_options: int = Field(
        4,
        ge=2,
        le=26,
        description="Number of options: 4 means A to D. Not used with a column of "
        "options.",
    )
    options_column: str = Field(
        "",
        max_length=500,
        description="Column with a list of the options' texts, or a column for each "
        "option, separated by commas. Then a text counts like its letter. Empty: "
        "letters only.",
    )
    answer_as: Literal["letter_or_text", "number_from_0", "number_from_1"] = Field(
        "letter_or_text",
        description="How the row's answer names its option: by letter or text, or by "
        "its index in the list.",
    )
    ignore_case: bool = Field(True, description="Ignore upper and lower case.")
    read_thinking: bool = thinking_field()


def score_choice(sample: Sample, params: MultipleChoiceParams) -> float:
    """Return 1 when the completion chooses the row's option, else 0.

    A letter may stand in brackets, before a point, a colon or its option's text. A
    place that names two options chooses none.
    """
    options = _options(sample, params)
    wanted = _reference(sample, params, options)
    reply = reply_of(sample, read_thinking=params.read_thinking)
    return float(_chosen(reply, params, options) == wanted)


def read_choice(completion: str, params: MultipleChoiceParams) -> str | None:
    """Give the letter that is chosen; an option's text says nothing without its row."""
    return _chosen(completion, params, ())


def _chosen(
    completion: str, params: MultipleChoiceParams, options: Sequence[str]
) -> str | None:
    letters = _letters(params, options)
    if params.source == "last_letter":
        place = last_line(completion) or ""
        letters_chosen = [
            letter
            for letter, word in compile_pattern(_BARE_AND_WORD).findall(
                _remaining(completion[-_MAX_CHARACTERS:])
            )
            if letter in letters and not (word and letter in _WORDS)
        ]
        return _of_text(place, params, options) or (
            letters_chosen[-1] if letters_chosen else None
        )
    if params.source == "marker" and params.ignore_case:
        # In the place of each one, so that the text behind it keeps its case.
        completion = re.sub(
            re.escape(params.marker),
            lambda _: params.marker,
            completion,
            flags=re.IGNORECASE,
        )
    text = find_part(completion, params.source, tag=params.tag, marker=params.marker)
    return None if text is None else _read(text, params, options)


def _read(
    text: str, params: MultipleChoiceParams, options: Sequence[str]
) -> str | None:
    """Return the letter of the one option that the text names; None for none or
    several.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    # Without what Markdown and LaTeX put around a word: **B**, $\text{B}$.
    plain = unwrapped(text.strip("*_`$ \n"), "answer")
    letters = _letters(params, options)
    alone = compile_pattern(_ALONE).fullmatch(plain)
    if alone and (letter := _letter(alone.group(1), params)) in letters:
        return letter
    if by_text := _of_text(plain, params, options):
        return by_text
    kept = _remaining(_without_reason(plain))
    return _leading(kept, params, options) or _named(kept, letters)


def _without_reason(text: str) -> str:
    """Get the choice of "D because A is too large", unless the reason chooses again."""
    match = compile_pattern(_REASONED).fullmatch(text)
    if match is None or compile_pattern(_OTHER_CHOICE).search(match.group(2)):
        return text
    return str(match.group(1))


def _remaining(text: str) -> str:
    """Return the text without options that it rules out."""
    return str(compile_pattern(_RULED_OUT).sub(" ", text)).strip()


def _of_text(
    text: str, params: MultipleChoiceParams, options: Sequence[str]
) -> str | None:
    wanted = _normalise(text, params)
    same = [
        letter
        for letter, option in zip(ascii_uppercase, options, strict=False)
        if _normalise(option, params) == wanted
    ]
    return same[0] if len(same) == 1 else None


def _leading(
    text: str, params: MultipleChoiceParams, options: Sequence[str]
) -> str | None:
    """Give the letter of "b) Paris", when lower case counts or Paris is its option."""
    match = compile_pattern(_LEADING).fullmatch(text)
    if match is None:
        return None
    letter = _letter(match.group(1), params)
    if letter not in _letters(params, options):
        return None
    if options and _of_text(match.group(2), params, options) == letter:
        return letter
    is_lower = match.group(1).islower()
    return letter if is_lower and not compile_pattern(_BARE).search(text) else None


def _named(text: str, letters: str) -> str | None:
    for pattern in (_MARKED, _BARE):
        letters_named = set(compile_pattern(pattern).findall(text)) & set(letters)
        if letters_named:
            return letters_named.pop() if len(letters_named) == 1 else None
    return None


def _letters(params: MultipleChoiceParams, options: Sequence[str]) -> str:
    return ascii_uppercase[: len(options) or params.num_options]


def _letter(text: str, params: MultipleChoiceParams) -> str:
    return text.upper() if params.ignore_case else text


def _normalise(text: str, params: MultipleChoiceParams) -> str:
    joined = " ".join(text.split()).removesuffix(".").rstrip()
    return joined.casefold() if params.ignore_case else joined


def _options(sample: Sample, params: MultipleChoiceParams) -> list[str]:
    if not params.options_column:
        return []
    column = column_of(sample.columns, params.options_column)
    if column is None and "," in params.options_column:
        column = []
        for name in (part.strip() for part in params.options_column.split(",")):
            option = column_of(sample.columns, name)
            if not isinstance(option, str | int | float):
                raise NotApplicable(
                    f'The row needs a column "{name}" with the text of an option; got '
                    f"{quote(option)}. Map the column, or name others in the rule."
                )
            column.append(option)
    listed = _listed(column)
    if not isinstance(listed, list) or not 2 <= len(listed) <= len(ascii_uppercase):
        raise NotApplicable(
            f'The row needs a column "{params.options_column}" with a list of 2 to 26 '
            f"options; got {quote(column)}. Map the column, or name another in the "
            "rule."
        )
    options = [replace_surrogates(str(option)) for option in listed]
    # AQuA writes "A)21", "B)15": each with its own letter.
    matches = [compile_pattern(_LETTERED).match(option) for option in options]
    letters = [match.group(1) for match in matches if match]
    if letters != [*ascii_uppercase[: len(options)]]:
        return options
    return [match.group(2) for match in matches if match]


def _listed(column: Any) -> Any:
    """ARC has {"label": ["A", …], "text": ["…", …]}, MedQA {"A": "…", "B": "…"}."""
    if not isinstance(column, dict):
        return column
    if "text" in column:
        return column["text"]
    options = [text for text in column.values() if text is not None]
    letters = [name for name, text in column.items() if text is not None]
    return options if letters == [*ascii_uppercase[: len(letters)]] else None


def _reference(
    sample: Sample, params: MultipleChoiceParams, options: Sequence[str]
) -> str:
    answer = require_answer(sample)
    letters = _letters(params, options)
    if (place := _label_place(sample, params, answer)) is not None:
        return letters[place]
    if params.answer_as == "letter_or_text":
        letter = _read(answer, params, options)
        if letter is not None:
            return letter
    elif len(answer) <= 10 and answer.strip().isdecimal():
        place = int(answer) - (params.answer_as == "number_from_1")
        if 0 <= place < len(letters):
            return letters[place]
    raise NotApplicable(
        f'The row\'s answer "{answer[:80]}" is none of the options {letters[0]} to '
        f"{letters[-1]}. Use a letter, or name the column with the options' texts in "
        "the rule."
    )


def _label_place(
    sample: Sample, params: MultipleChoiceParams, answer: str
) -> int | None:
    """Find the place of ARC's label: some questions label their options 1 to 4."""
    if not params.options_column:
        return None
    column = column_of(sample.columns, params.options_column)
    labels = column.get("label") if isinstance(column, dict) else None
    if not isinstance(labels, list) or answer not in labels:
        return None
    return labels.index(answer)


_QUESTION = "Capital of France? A) Lyon B) Paris"
RULE = Rule(
    kind="multiple_choice",
    title="Multiple choice",
    summary="The chosen option, by letter or text, is correct.",
    params_model=MultipleChoiceParams,
    score=score_choice,
    compares_answer=True,
    example_pass=Example(sample=Sample(_QUESTION, "<answer>(B)</answer>", "B")),
    example_fail=Example(sample=Sample(_QUESTION, "<answer>A or B</answer>", "B")),
    also_pass=(
        Example(sample=Sample(_QUESTION, "<answer>B, not A</answer>", "B")),
        Example(sample=Sample(_QUESTION, "<answer>A is wrong, so B</answer>", "B")),
    ),
    also_fail=(Example(sample=Sample(_QUESTION, "<answer>not B</answer>", "B")),),
)
