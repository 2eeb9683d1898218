"""What kind of thing an answer is, by how it is written."""

from __future__ import annotations

import json
import re

MISSING = "none"
EMPTY = "empty"
# The first that fits is taken.
_PATTERNS = (
    ("integer", re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")),
    (
        "decimal",
        re.compile(
            r"[+-]?(\d+|\d{1,3}(,\d{3})+)?\.\d+|[+-]?\d+\.|[+-]?\d+(\.\d+)?[eE][+-]?\d+"
        ),
    ),
    ("fraction", re.compile(r"[+-]?\d+\s*/\s*\d+")),
    ("percentage", re.compile(r"[+-]?\d+(\.\d+)?\s*\\?%")),
    ("letter", re.compile(r"\(?[A-Za-z]\)?[.:)]?")),
    ("yes or no", re.compile(r"yes|no|true|false", re.IGNORECASE)),
)
_LATEX = re.compile(r"\\[A-Za-z]+|\$[^$]+\$|\^\{|_\{")
_LONGEST_JSON = 100_000


def answer_type(answer: str | None) -> str:
    """
    >>> answer_type(" -1,024 ")
    'integer'
    """
    if answer is None:
        return MISSING
    text = answer.strip()
    if not text:
        return EMPTY
    for name, pattern in _PATTERNS:
        if pattern.fullmatch(text):
            return name
    if "\\boxed{" in text:
        return "boxed"
    if _LATEX.search(text):
        return "LaTeX"
    if _is_json(text):
        return "JSON"
    return "text" if "\n" not in text else "text of several lines"


def _is_json(text: str) -> bool:
    if text[0] + text[-1] not in ("{}", "[]") or len(text) > _LONGEST_JSON:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
