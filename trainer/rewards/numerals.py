"""Numbers as people write them in answers, read exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from trainer.rewards.patterns import compile_pattern

# Longer digit strings are no answers; int() also refuses more than 4,300 of them.
_MAX_CHARACTERS = 100
_MAX_EXPONENT = 300

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_LATEX_FRACTION = (
    r"\\[dt]?frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>-?\d+)\s*\}"
)
_NUMBER = (
    rf"(?P<sign>[-+])?\s?[$€£]?(?:{_LATEX_FRACTION}"
    rf"|(?P<value>{_UNSIGNED})(?:\s?/\s?(?P<over>{_DIGITS}))?)(?P<percent>\s?\\?%)?"
)

Percent = Literal["ignore", "divide"]


def read_number(text: str, *, percent: Percent = "ignore") -> Fraction | None:
    """The number that the whole text is; None when it is anything else.

    `percent`: what a percent sign means; "divide" makes 50% one half.

    >>> read_number("-1,234.50")
    Fraction(-2469, 2)
    """
    match = compile_pattern(_NUMBER).fullmatch(_plain(text))
    return None if match is None else _value(match, "", percent)


def last_number(text: str, *, percent: Percent = "ignore") -> Fraction | None:
    """The last number in the text, with its sign.

    A minus after a digit, a letter or a bracket subtracts and is no sign: the last
    number of "9-7" is 7, of "= -7" it is -7.
    """
    plain = _plain(text)
    last = None
    for match in compile_pattern(_NUMBER).finditer(plain):
        last = match
    if last is None:
        return None
    before = plain[: last.start()].rstrip()[-1:]
    return _value(last, before, percent)


def only_number(text: str, *, percent: Percent = "ignore") -> Fraction | None:
    """The number in the text, with its sign; None when there is none or another.

    >>> only_number("72 apples")
    Fraction(72, 1)
    """
    matches = compile_pattern(_NUMBER).finditer(_plain(text))
    is_single = next(matches, None) is not None and next(matches, None) is None
    return last_number(text, percent=percent) if is_single else None


def _plain(text: str) -> str:
    return text.replace("\u2212", "-").replace("\\!", "").replace("\\$", "$").strip()


def _value(match: Any, before: str, percent: Percent) -> Fraction | None:
    if len(match.group(0)) > _MAX_CHARACTERS:
        return None
    value = _unsigned(match)
    if value is None:
        return None
    if match.group("sign") == "-" and not (before.isalnum() or before in {")", "]"}):
        value = -value
    if match.group("percent") and percent == "divide":
        value /= 100
    return value


def _unsigned(match: Any) -> Fraction | None:
    if match.group("top") is not None:
        return _ratio(Fraction(match.group("top")), Fraction(match.group("bottom")))
    digits = match.group("value").replace(",", "").lower()
    _, _, exponent = digits.partition("e")
    # Fraction("1e999999999") would fill the memory.
    if len(exponent) > 5 or abs(int(exponent or 0)) > _MAX_EXPONENT:
        return None
    value = Fraction(digits)
    if match.group("over") is not None:
        return _ratio(value, Fraction(match.group("over").replace(",", "")))
    return value


def _ratio(top: Fraction, bottom: Fraction) -> Fraction | None:
    return top / bottom if bottom else None
