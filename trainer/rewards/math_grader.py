"""Compares mathematical answers by math-verify, in the judge's child process.

math-verify leaves out what it cannot read and rounds to six digits, so its verdict
"equal" counts only when both answers were read whole and nothing tells them apart.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.math_normalization import extract_boxed_content
from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.grader import (
    is_equation,
    safe_sympy_doit,
    sort_key,
    take_last_relation,
    unwrap_eq,
)
from math_verify.parser import parse_latex_cached
from sympy import Expr, Float, Interval, MatrixBase, Tuple, UnevaluatedExpr

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
# As many digits of a number below 1 as six decimal places are of a number near it.
_MAX_RELATIVE_ERROR = 1e-5
_equals = partial(verify, allow_set_relation_comp=True, timeout_seconds=None)
logging.disable(logging.CRITICAL)


def grade(question: dict[str, Any]) -> dict[str, Any]:
    """`{"reference", "text", "is_bare", "as_published"}` → `{"is_readable", …}`.

    A text that the libraries fail on is wrong, unless they fail on the reference too.

    `is_bare`: the text is an answer alone, not a completion that holds one somewhere.
    The reply holds `is_readable` (the reference) and `is_right` (the text).

    math-verify's own timeout is a signal handler, which fails outside the main thread
    and cannot interrupt C code; ours is the judge's alarm, so it is off.
    """
    try:
        return _compare(question)
    except Exception:  # noqa: BLE001 - foreign parsers; each failure is answered
        itself = question | {"text": question["reference"]}
        is_readable = itself != question and grade(itself)["is_readable"]
        return {"is_readable": is_readable, "is_right": False}


def _compare(question: dict[str, Any]) -> dict[str, Any]:
    text, reference = question["text"], question["reference"]
    if question.get("as_published"):
        gold = _extract(reference, _TARGETS, "first_match")
        extracted = _extract(text, _PUBLISHED_TARGETS, "first_match")
        is_right = gold and extracted and verify(gold, extracted, timeout_seconds=None)
        return {"is_readable": bool(gold), "is_right": bool(is_right)}
    reference = extract_boxed_content(reference, "last")
    if question["is_bare"]:
        text = extract_boxed_content(text, "last")
        extracted, written = _read(text), text
    else:
        extracted = _find(text)
        written = str(extracted[-1]) if extracted else ""
    if words := words_of(reference):
        is_right = words == words_of(written, is_expected=True)
        return {"is_readable": bool(written), "is_right": is_right}
    # Dollar signs in a text say which part of it is the formula.
    is_marked = "$" in reference.replace("\\$", "").strip("$ .") and has_words(
        reference
    )
    gold = _find(reference) if is_marked else _read(reference)
    is_date = any(map(str.isdigit, words_of(written)))
    is_right = text == reference or (not is_date and _are_equal(gold, extracted))
    return {"is_readable": bool(gold), "is_right": bool(gold and is_right)}


def _read(text: str) -> list[Any]:
    """Give what the formula is as a whole, and its LaTeX; no part of it is left out."""
    formula = formula_of(in_latex(text))
    return _parse(normalize_latex(formula, _TARGETS[0].normalization_config))


def _parse(latex: str) -> list[Any]:
    if not latex or latex.count("{") != latex.count("}"):
        return []
    try:
        return [parse_latex_cached(latex), latex]
    except Exception:  # noqa: BLE001 - a foreign parser; each failure is answered
        return [latex]


def _find(text: str) -> list[Any]:
    """Return what math-verify finds in a completion, unless it left out a part."""
    text = text.replace("\\mathrm{e}", "e").replace("\\mathrm{i}", "i")
    extracted = _extract(text, _TARGETS)
    latex = str(extracted[-1]) if extracted else ""
    return _parse(latex) if "\\" in latex and " and " not in latex else extracted


def _extract(text: str, targets: Any, mode: Any = "any_match") -> list[Any]:
    """Return the formula that math-verify finds in a text, and its LaTeX."""
    return list(
        parse(text, targets, extraction_mode=mode, parsing_timeout=None)  # of ours
    )


def _are_equal(gold: list[Any], answer: list[Any]) -> bool:
    if not gold or not answer or bases_of(gold[-1]) != bases_of(answer[-1]):
        return False
    is_set = "\\{" in gold[-1] or "\\{" in answer[-1]
    return _equals(gold, answer) and (is_set or not _differ(gold[0], answer[0]))


def _differ(gold: Any, answer: Any) -> bool:
    """Return whether rounding, or a value that is listed once more, makes two look
    equal.
    """
    are_equations = is_equation(gold), is_equation(answer)
    if all(are_equations) and unwrap_eq(gold) == gold:
        return False  # the same solutions, of which the sides say nothing
    left, other = (
        take_last_relation(it).rhs if is_one else it
        for it, is_one in zip((gold, answer), are_equations, strict=True)
    )
    lists = _elements(left), _elements(other)
    if isinstance(left, FiniteSet) or isinstance(other, FiniteSet):
        # Solutions of several unknowns, which are tuples, have no multiplicity.
        numbers = [[it for it in listed if isinstance(it, Expr)] for listed in lists]
        if all(len({*listed}) == len(listed) for listed in numbers):
            return False
        lists = sorted(lists[0], key=sort_key), sorted(lists[1], key=sort_key)
    elif len(lists[0]) != len(lists[1]):
        return False  # an interval and an inequality
    elif lists == ([left], [other]):
        return _differ_in_value(left, other)
    return len(lists[0]) != len(lists[1]) or any(
        not _equals(*pair) or _differ(*pair) for pair in zip(*lists, strict=True)
    )


def _elements(answer: Any) -> list[Any]:
    if isinstance(answer, FiniteSet):
        return list(getattr(answer, "_unsorted_args", answer.args))
    if isinstance(answer, Interval):
        return [answer.start, answer.end]
    return [*answer] if isinstance(answer, MatrixBase | Tuple) else [answer]


def _differ_in_value(gold: Any, answer: Any) -> bool:
    # Of names math-verify ignores the case, of 9 % and 9 the sign.
    if gold == answer or not all(
        isinstance(it, Expr) and not it.is_Symbol and not it.has(UnevaluatedExpr)
        for it in (gold, answer)
    ):
        return False
    try:
        left, other = safe_sympy_doit(gold), safe_sympy_doit(answer)
        if not left.has(Float) and not other.has(Float):
            return left.equals(other) is False
        values = complex(left.evalf()), complex(other.evalf())
    except Exception:  # noqa: BLE001 - no value, so none that differs
        return False
    return abs(values[0] - values[1]) > _MAX_RELATIVE_ERROR * max(map(abs, values))
