"""Comparing mathematical answers with math-verify; runs in the judge's process."""

from __future__ import annotations

import logging
from typing import Any

import re2
from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

# Four letters in a row that are no LaTeX command.
_WORD = re2.compile(r"(?:^|[^\\a-zA-Z])[a-zA-Z]{4,}")
_TARGETS = (LatexExtractionConfig(), ExprExtractionConfig())
# Open R1 reads LaTeX alone, between marks, and mends no malformed operator.
_PUBLISHED_TARGETS = (
    LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            basic_latex=True,
            units=True,
            malformed_operators=False,
            nits=False,
            boxed="all",
            equations=True,
        ),
    ),
)
logging.disable(logging.CRITICAL)


def grade_math(question: dict[str, Any]) -> dict[str, Any]:
    """`{"reference", "text", "is_bare", "as_published"}` → `{"is_readable", …}`.

    `is_bare`: the text is an answer alone, not a completion that holds one somewhere.
    The reply holds `is_readable` (the reference) and `is_right` (the text).

    math-verify's own timeout is a signal handler, which fails outside the main
    thread and cannot interrupt C code; ours is the judge's alarm, so it is off.
    """
    text, reference = question["text"], question["reference"]
    if question.get("as_published"):
        gold = _read_first(reference, _TARGETS)
        found = _read_first(text, _PUBLISHED_TARGETS)
    else:
        gold = _read_bare(reference)
        found = _read_bare(text) if question["is_bare"] else _read(text)
    is_right = bool(gold and found) and verify(gold, found, timeout_seconds=None)
    return {"is_readable": bool(gold), "is_right": bool(is_right)}


def _read_bare(text: str) -> list[Any]:
    """Without dollar signs x^2+1 would read as 1; with them, Paris as a product."""
    has_marks = any(mark in text for mark in ("$", "\\boxed", "\\(", "\\["))
    if has_marks or _WORD.search(text):
        return _read(text)
    return _read(f"${text}$") or _read(text)


def _read(text: str) -> list[Any]:
    parsed: list[Any] = parse(
        text, extraction_config=_TARGETS, parsing_timeout=None, raise_on_error=False
    )
    return parsed


def _read_first(text: str, targets: tuple[Any, ...]) -> list[Any]:
    parsed: list[Any] = parse(
        text,
        extraction_config=targets,
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=False,
    )
    return parsed
