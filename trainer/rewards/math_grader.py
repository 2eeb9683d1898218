"""Compares mathematical answers by math-verify, in the judge's child process.

math-verify leaves out what it cannot read and rounds to six digits, so its verdict
"equal" counts only when both answers were read whole and nothing tells them apart.
"""

from __future__ import annotations

import logging
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

from trainer.rewards.math_text import (
    bases_of,
    formula_of,
    has_words,
    in_latex,
    words_of,
)

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
        found = _extract(text, _PUBLISHED_TARGETS, "first_match")
        is_right = gold and found and verify(gold, found, timeout_seconds=None)
        return {"is_readable": bool(gold), "is_right": bool(is_right)}
    reference = extract_boxed_content(reference, "last")
    if question["is_bare"]:
        text = extract_boxed_content(text, "last")
        found, written = _read(text), text
    else:
        found = _find(text)
        written = str(found[-1]) if found else ""
    if words := words_of(reference):
        is_right = words == words_of(written, is_expected=True)
        return {"is_readable": bool(written), "is_right": is_right}
    # Dollar signs in a text say which part of it is the formula.
    is_marked = "$" in reference.replace("\\$", "").strip("$ .") and has_words(
        reference
    )
    gold = _find(reference) if is_marked else _read(reference)
    is_date = any(map(str.isdigit, words_of(written)))
    is_right = text == reference or (not is_date and _are_equal(gold, found))
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
    found = _extract(text, _TARGETS)
    latex = str(found[-1]) if found else ""
    return _parse(latex) if "\\" in latex and " and " not in latex else found


def _extract(text: str, targets: Any, mode: Any = "any_match") -> list[Any]:
    """Return the formula that math-verify finds in a text, and its LaTeX."""
    return list(
        parse(text, targets, extraction_mode=mode, parsing_timeout=None)  # of ours
    )


def _are_equal(gold: list[Any], found: list[Any]) -> bool:
    if not gold or not found or bases_of(gold[-1]) != bases_of(found[-1]):
        return False
    is_set = "\\{" in gold[-1] or "\\{" in found[-1]
    return _equals(gold, found) and (is_set or not _differ(gold[0], found[0]))


def _differ(gold: Any, found: Any) -> bool:
    """Return whether rounding, or a value that is listed once more, makes two look
    equal.
    """
    are_equations = is_equation(gold), is_equation(found)
    if all(are_equations) and unwrap_eq(gold) == gold:
        return False  # the same solutions, of which the sides say nothing
    one, other = (
        take_last_relation(it).rhs if is_one else it
        for it, is_one in zip((gold, found), are_equations, strict=True)
    )
    lists = _elements(one), _elements(other)
    if isinstance(one, FiniteSet) or isinstance(other, FiniteSet):
        # Solutions of several unknowns, which are tuples, have no multiplicity.
        numbers = [[it for it in listed if isinstance(it, Expr)] for listed in lists]
        if all(len({*listed}) == len(listed) for listed in numbers):
            return False
        lists = sorted(lists[0], key=sort_key), sorted(lists[1], key=sort_key)
    elif len(lists[0]) != len(lists[1]):
        return False  # an interval and an inequality
    elif lists == ([one], [other]):
        return _differ_in_value(one, other)
    return len(lists[0]) != len(lists[1]) or any(
        not _equals(*pair) or _differ(*pair) for pair in zip(*lists, strict=True)
    )


def _elements(answer: Any) -> list[Any]:
    if isinstance(answer, FiniteSet):
        return list(getattr(answer, "_unsorted_args", answer.args))
    if isinstance(answer, Interval):
        return [answer.start, answer.end]
    return [*answer] if isinstance(answer, MatrixBase | Tuple) else [answer]


def _differ_in_value(gold: Any, found: Any) -> bool:
    # Of names math-verify ignores the case, of 9 % and 9 the sign.
    if gold == found or not all(
        isinstance(it, Expr) and not it.is_Symbol and not it.has(UnevaluatedExpr)
        for it in (gold, found)
    ):
        return False
    try:
        one, other = safe_sympy_doit(gold), safe_sympy_doit(found)
        if not one.has(Float) and not other.has(Float):
            return one.equals(other) is False
        values = complex(one.evalf()), complex(other.evalf())
    except Exception:  # noqa: BLE001 - no value, so none that differs
        return False
    return abs(values[0] - values[1]) > _MAX_RELATIVE_ERROR * max(map(abs, values))
