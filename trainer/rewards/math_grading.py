"""Comparing mathematical answers with math-verify; runs in the judge's process."""

from __future__ import annotations

import logging
from typing import Any

import re2
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

# Four letters in a row that are no LaTeX command.
_WORD = re2.compile(r"(?:^|[^\\a-zA-Z])[a-zA-Z]{4,}")
_TARGETS = (LatexExtractionConfig(), ExprExtractionConfig())
logging.disable(logging.CRITICAL)


def grade_math(question: dict[str, Any]) -> dict[str, Any]:
    """`{"reference", "text", "is_bare"}` → `{"is_readable", "is_right"}`.

    `is_bare`: the text is an answer alone, not a completion that holds one somewhere.

    math-verify's own timeout is a signal handler, which fails outside the main
    thread and cannot interrupt C code; ours is the judge's alarm, so it is off.
    """
    text = question["text"]
    gold = _read_bare(question["reference"])
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
