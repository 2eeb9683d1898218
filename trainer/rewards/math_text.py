r"""Reads how people write mathematics, as LaTeX.

A grader's parser knows LaTeX alone. What it does not know it drops: of 3√2 it reads 3.
So plain signs become LaTeX, and words leave the formula that they stand around.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

from trainer.rewards.extraction import as_typed, closing_of
from trainer.rewards.numbers import RAISED_DIGITS

_GREEK = "alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega"
_SIGNS = str.maketrans(
    {
        **{
            letter: f"\\{name} "
            for letter, name in zip("αβγδεθλμπρστφω", _GREEK.split(), strict=True)
        },
        **{
            sign: "\\frac{{{}}}{{{}}}".format(
                *unicodedata.normalize("NFKC", sign).split("\u2044")
            )
            for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
        },
        **dict.fromkeys("€£¥₹₽₩", ""),
        **dict.fromkeys("·⋅∗", "\\cdot "),
        "√": "sqrt",
        "\u00d7": "\\times ",
        "÷": "/",
        "\u2044": "/",
        "\u2215": "/",
        "∞": "\\infty ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "≠": "\\ne ",
        "±": "\\pm ",
        "∪": "\\cup ",
        "∩": "\\cap ",
        "∅": "\\emptyset ",
        "∈": "\\in ",
        "°": "^\\circ ",
    }
)
_COMMANDS = (
    f"{_GREEK} arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc log ln exp"
).replace(" ", "|")
_TEXT = r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox|operatorname)\s*"


def _as_fraction(decimal: re.Match[str]) -> str:
    """Return a repeating decimal, of its groups whole part, digits once and digits
    again.
    """
    whole, once, again = (part for part in decimal.groups() if part is not None)
    repeated = Fraction(int(again), 10 ** len(again) - 1)
    value = (int(whole + once) + repeated) / 10 ** len(once)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


# In this order: the pattern of what is written, and its LaTeX.
_Replacement = str | Callable[[re.Match[str]], str]
_WRITTEN: tuple[tuple[str, _Replacement], ...] = (
    # As characters they are no variable's power.
    (r"(?<=[\d\s])[kcdm]?m[²³]", ""),
    (
        "[⁰¹²³⁴⁵⁶⁷⁸⁹\u207b]+",
        lambda raised: f"^{{{raised[0].translate(RAISED_DIGITS)}}}",
    ),
    # Marks of mathematics and of money.
    (r"\\\$|\$|(?<!\\)\\[()\[\]]", " "),
    (rf"{_TEXT}\{{\s*([-+\d.,/]+|[ei])\s*\}}", r"\1"),
    (rf"{_TEXT}\{{\s*([-+\d.,/]+)(\s[^{{}}]*)\}}", r"\1\\text{\2}"),
    (r"\s*\\?%", r"\\%"),
    (r"\((\d+)\)_", r"\1_"),
    (r"\*\*", "^"),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"!=", r"\\ne "),
    (rf"(?<![\\A-Za-z])({_COMMANDS})(?![A-Za-z])", r"\\\1 "),
    (r"(?<![\\A-Za-z])(?:infinity|infty|inf)(?![A-Za-z])", r"\\infty "),
    (r"(?<![\\A-Za-z])sqrt\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
    (r"(?<!\\)sqrt(?=\s*\{)", r"\\sqrt"),
    (r"(?<=[\d})])\s*(?:[kcdm]m|ft|in|yd)\s?\^\s?\{?[23]\}?\s*\.?$", ""),
    # 2e-1 may be a difference; 1.5e-1, 1e-1 and 2E-1 are none.
    (
        r"(?<![\w.\\])(\d+\.\d+(?=[eE][-+]?\d)|\d+(?=E[-+]?\d|e\d)|1(?=e[-+]\d))"
        r"[eE]([-+]?\d+)(?![\w.])",
        r"\1 \\times 10^{\2}",
    ),
    (
        # int() refuses over 4,300 digits
        r"(?<!\d)(\d{1,50})\.(?:(\d{0,50})\\(?:overline|bar|dot)\s*\{?(\d{1,50})(?!\d)\}?"
        r"|()\((\d{1,50})\))",
        _as_fraction,
    ),
)


def in_latex(text: str) -> str:
    r"""Return the text with LaTeX for plain signs and names, without marks and money.

    >>> in_latex("3√2 or 2*pi")
    '3\\sqrt{2} or 2*\\pi '
    """
    text = as_typed(text).translate(_SIGNS)
    for pattern, replacement in _WRITTEN:
        text = re.sub(pattern, replacement, text)
    while root := re.search(r"\\?sqrt\s*\(", text):
        end = closing_of(text, root.end(), "()")
        if end is None:
            break
        inside = text[root.end() : end]
        text = f"{text[: root.start()]}\\sqrt{{{inside}}}{text[end + 1 :]}"
    return text


_WORD = r"(?:[^\W\d_]{2,}|[^\W\d_A-Za-z])"
# What has letters and no words: text in a formula, environments, commands, subscripts.
_PROTECTED = (
    rf"{_TEXT}\{{[^{{}}]*\}}|\\(?:begin|end)\s*\{{[^{{}}]*\}}(?:\{{[lcr|]*\}})?"
    r"|\\[A-Za-z]+|_\{[^{}]*\}"
)
_HAS_WORDS = re.compile(
    r"[A-Za-z]{4,}|\b(?:is|are|was|the|get)\b|[^\W\d_A-Za-z]", re.IGNORECASE
)
# A run of words, or a remark in parentheses.
_RUN = re.compile(
    rf"{_PROTECTED}|(\((?=[^()]*\))[^()\\]*[A-Za-z]{{4,}}[^()]*\)"
    rf"|(?:\b[aAI]\s+)?{_WORD}(?:[\s,.;:'!?-]+(?:{_WORD}|[aAI]\b))*)"
)
_EDGES = r"^(?:[\s,;:=!?]|\.(?!\d))+|[\s,.;:=!?-]+$"


def has_words(latex: str) -> bool:
    """Return whether words stand around the formula, besides the text inside it."""
    return bool(_HAS_WORDS.search(re.sub(_PROTECTED, " ", latex)))


def formula_of(latex: str) -> str:
    r"""Return the formula, of a text with words the
    last one; empty where there is none.

    >>> formula_of(r"The area is 12\pi square inches.")
    '12\\pi'
    """
    if not has_words(latex):
        return latex.strip().rstrip(" .")
    pieces = reversed(_RUN.sub(_separator, latex).split("\0"))
    formulas = (re.sub(_EDGES, "", piece) for piece in pieces)
    return next((formula for formula in formulas if formula.strip("()[] ")), "")


def _separator(run: re.Match[str]) -> str:
    if run[1] is None:
        return run[0]
    if re.search(r"(?i)\b(?:not|never|neither|no|wrong|incorrect)\b|n't\b", run[1]):
        return "\0\\ne "  # which no formula equals
    # 12 or 13 are a list.
    is_list = re.search(r"(?i)\b(?:or|and|by|plus|minus|times)\W*$", run[1])
    return "," if is_list else "\0"


_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = (
    rf"\b{_MONTH}\.? \d+|\b\d+(?:st|nd|rd|th)?(?: of)? {_MONTH}\b"
    r"|\b\d+(?::\d\d)? ?[ap]\.? ?m\b"
)


def words_of(text: str, *, is_expected: bool = False) -> str:
    r"""Return the words that are the answer, in lower
    case: a name, dates, times of day.

    Empty for mathematics, as which few letters alone count unless words are expected.

    >>> words_of(r"\text{No solution}")
    'no solution'
    """
    inside = re.sub(rf"{_TEXT}\{{([^{{}}]*)\}}", r" \1 ", as_typed(text))
    plain = " ".join(inside.strip("$ .!\n").split()).casefold()
    if dates := " ".join(re.findall(_DATE, plain)):
        return " ".join(sorted(re.findall(r"[a-z]{3}|\d+|[ap](?=\W*m)", dates)))
    if not re.fullmatch(r"[^\W\d_](?:[ '-]*[^\W\d_])+", plain) or "\\" in in_latex(
        plain
    ):
        return ""
    outside = re.sub(rf"{_TEXT}\{{[^{{}}]*\}}", "", text)
    is_text = inside != text and not re.search(r"[^\W\d_]", outside)
    is_name = plain.count(" ") < 2 and _HAS_WORDS.search(plain)
    return plain if is_expected or is_text or is_name else ""


def bases_of(latex: str) -> list[str]:
    r"""Return the bases of numerals, of which math-verify reads the digits alone.

    >>> bases_of("52_{9}")
    ['9']
    """
    return re.findall(r"\d_\{?(?:\\text\{)?\s*(\w+)", latex)
