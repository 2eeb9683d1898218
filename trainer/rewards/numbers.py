"""Parses numbers and arithmetic in text and computes them exactly, without eval."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from trainer.rewards.rule import compile_pattern

# Longer digit strings are no answers; int() also refuses more than 4,300 of them.
_MAX_CHARACTERS = 100
_MAX_EXPONENT = 300
_MAX_TAIL = 300

# Between groups of thousands: a comma, an apostrophe, a thin or no-break space, LaTeX's
# {,} and its narrow spaces.
_SEPARATOR = r"(?:,|\{,\}|\\[,;: ]|['\x{2019}]|[\x{a0}\x{2007}\x{2009}\x{202f}])"
_DIGITS = rf"(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+|\d+)"
_UNSIGNED = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
# A line's end would join the numbers of two lines.
_GAP = r"[ \x{a0}]"
_PART = rf"{_GAP}*(?:\{{\s*(-?\d+)\s*\}}|(\d))"
# Groups that match: the whole part, if any, the top and the bottom. Four digits before
# a gap are a number of their own: "in 2024 3/4 of them".
_FRACTION = (
    rf"(?:(\d+)|(\d{{1,3}}){_GAP})?\\[dt]?frac{_PART}{_PART}"
    rf"|(\d{{1,3}}) +(\d+){_GAP}?/{_GAP}?(\d+)"
)
_RAISED_TO = rf"{_GAP}?(?:\^{_GAP}?\{{?\s?(-?\d+)\s?\}}?|([\x{{207b}}⁰¹²³⁴⁵⁶⁷⁸⁹]+))"
_POWER_OF_TEN = (
    rf"(?:({_UNSIGNED}){_GAP}?(?:\x{{d7}}|\*|\\times|\\cdot){_GAP}?)?10{_RAISED_TO}"
)
_POWER = rf"{_UNSIGNED}{_RAISED_TO}"
_RATIO = rf"({_UNSIGNED})(?:{_GAP}?/{_GAP}?({_DIGITS}))?"
# Groups: sign, number, percent sign. RE2 is the slower the more groups there are.
_NUMBER = (
    rf"([-+])?{_GAP}?[$€£]?("
    + "|".join((_FRACTION, _POWER_OF_TEN, _POWER, _RATIO))
    .replace("(?:", "(")
    .replace("(", "(?:")
    + rf")({_GAP}?\\?%)?"
)
# Read with the number before it, so that the exponent of cm^2 is not the last number.
_UNIT = (
    r"(?:[kcdm\x{b5}]?m|ft|in|inch|inches|feet|foot|yd|mi"
    r"|(?:centi|kilo|milli)?met(?:er|re)s?|units?|s|sec|seconds?|h|hours?|min|[km]?g"
    r"|N|J|W|K|mol|L)"
)
_EXPONENT = r"(?:\s?\}?\s?\^\s?\{?\s?-?\d+\s?\}?|[\x{207b}¹²³⁴]+|[2-4]\b)"
_WITH_UNIT = (
    rf"{_NUMBER}(?:(?:\s|~|\\[,;: ])*(?:square\s|cubic\s)?"
    rf"(?:\\(?:text|mathrm|rm)\s?\{{[\s~]*)?{_UNIT}{_EXPONENT}?"
    rf"(?:\s?[/\x{{b7}}*]\s?{_UNIT}{_EXPONENT}?)*)?"
)

Percent = Literal["ignore", "divide"]


def read_number(
    text: str, *, percent: Percent = "ignore", with_unit: bool = False
) -> Fraction | None:
    """Return the number that the whole text is; None when it is anything else.

    `percent`: what a percent sign means; "divide" makes 50% one half. `with_unit`: a
    unit such as cm may follow.

    >>> read_number("-1,234.50")
    Fraction(-2469, 2)
    """
    if text.isascii() and text.isdigit() and len(text) <= _MAX_CHARACTERS:
        return Fraction(int(text))
    pattern = compile_pattern(_WITH_UNIT if with_unit else _NUMBER)
    match = pattern.fullmatch(_plain(text))
    return None if match is None else _value(match, "", percent)


def last_number(text: str, *, percent: Percent = "ignore") -> Fraction | None:
    """Return the last number in the text, with its sign.

    A minus after a digit, a letter or a bracket subtracts: the last number of "9-7" is
    7, of "= -7" and "is -7" it is -7.
    """
    plain = _plain(text)
    # Of a long text its end is enough, unless a number may begin before that.
    for start in (max(0, len(plain) - _MAX_TAIL), 0):
        last = None
        for match in compile_pattern(_WITH_UNIT).finditer(plain[start:]):
            last = match
        if last is not None and (start == 0 or last.start() > _MAX_CHARACTERS):
            return _value(last, plain[: start + last.start()][-20:], percent)
    return None


def only_number(text: str, *, percent: Percent = "ignore") -> Fraction | None:
    """Return the number in the text, with its sign; None when there is none or another.

    >>> only_number("72 apples")
    Fraction(72, 1)
    """
    matches = compile_pattern(_WITH_UNIT).finditer(_plain(text))
    is_single = next(matches, None) is not None and next(matches, None) is None
    return last_number(text, percent=percent) if is_single else None


# Signs and points of other scripts; their digits are translated by their values.
_ASCII = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\ufe63\uff0d", "-"),
    "\uff0b": "+",
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff05": "%",
    "\u066b": ".",
    "\u066c": ",",
    "\u066a": "%",
}


def _plain(text: str) -> str:
    if not text.isascii():
        text = text.translate({ord(it): _in_ascii(it) for it in set(text)})
    return text.replace("\\!", "").replace("\\$", "$").strip()


def _in_ascii(character: str) -> str:
    r"""Return a digit of any script as 0 to 9, a sign
    or point in ASCII, ½ as \frac{1}{2}.
    """
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.decomposition(character).startswith("<fraction>"):
        return "\\frac{{{}}}{{{}}}".format(
            *unicodedata.normalize("NFKC", character).split("\u2044")
        )
    return _ASCII.get(character, character)


def _value(match: Any, before: str, percent: Percent) -> Fraction | None:
    # Not by name, which the pattern's library looks up at each use.
    sign, number, has_percent = match.groups()
    value = _unsigned(number)
    if value is None:
        return None
    if sign == "-" and not _subtracts(before, match.group(0)):
        value = -value
    if has_percent and percent == "divide":
        value /= 100
    return value


def _subtracts(before: str, number: str) -> bool:
    """Return whether the number's minus sign is a subtraction from another term."""
    if compile_pattern(r"\pL{2,}\s+$").search(before) and not number[1:2].isspace():
        return False  # a word: "is -7"
    last = before.rstrip()[-1:]
    return last.isalnum() or last in {")", "]"}


def _unsigned(number: str) -> Fraction | None:
    if len(number) > _MAX_CHARACTERS:
        return None
    if number.isdecimal():  # nearly always
        return Fraction(number)
    if parts := _groups(_FRACTION, number):
        *whole, top, bottom = map(Fraction, parts)
        value = _ratio(top, bottom)
        if value is None or not whole:
            return value
        return whole[0] + value if 0 < value < 1 else None
    if parts := _groups(_POWER_OF_TEN, number):
        return _scaled(parts[0] if len(parts) > 1 else "1", parts[-1])
    # Another power, such as 2^10, matches no pattern and has no value.
    values = [_scaled(part) for part in _groups(_RATIO, number)]
    if not values or values[0] is None:
        return None
    return _ratio(values[0], values[-1] or Fraction(0)) if values[1:] else values[0]


def _groups(pattern: str, text: str) -> list[str]:
    """Get those of the pattern's groups that match; none where the pattern does not."""
    match = compile_pattern(pattern).fullmatch(text)
    return [group for group in match.groups() if group] if match else []


def _scaled(factor: str, power: str = "0") -> Fraction | None:
    """factor * 10 ** power, of a factor that may have an exponent itself."""
    digits, exponent, own = factor.lower().partition("e")
    powers = [own if exponent else "0", power.translate(RAISED_DIGITS)]
    # Fraction("1e999999999") would fill the memory.
    if not all(it.strip("+-") and abs(int(it[:6])) <= _MAX_EXPONENT for it in powers):
        return None
    scale = sum(map(int, powers))
    return Fraction(re.sub(r"[^0-9.]", "", digits)) * Fraction(10) ** scale


RAISED_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹\u207b", "0123456789-")


def _ratio(top: Fraction, bottom: Fraction) -> Fraction | None:
    return top / bottom if bottom else None


# Bounds that no honest answer meets, and that keep hostile ones cheap. Each level of
# depth costs five Python frames of a thousand.
MAX_CHARACTERS = 2_000
MAX_DEPTH = 50
MAX_DIGITS = 30
MAX_POWER_BITS = 4_096

_SYMBOL = r"\d+\.\d*|\.\d+|\d+|\*\*|//|[-+*/()]"
_SPACED = rf"(?:\s*(?:{_SYMBOL}))+\s*"


class ArithmeticRefused(Exception):
    """The text is not arithmetic, divides by zero, or is out of all bounds."""


@dataclass(frozen=True)
class Computed:
    """The value of an expression and the numerals in it, from left to right."""

    value: Fraction
    numerals: tuple[str, ...]


def compute(text: str, *, as_python: bool = False) -> Computed:
    """Compute an expression of whole numbers, + - * / and parentheses.

    `as_python` also takes what Python's grammar makes of the same characters: powers
    `**`, floor division `//` and decimal points.

    >>> compute("(1 + 2) / 3").value
    Fraction(1, 1)
    """
    if len(text) > MAX_CHARACTERS or not compile_pattern(_SPACED).fullmatch(text):
        raise ArithmeticRefused("not arithmetic")
    symbols: list[str] = compile_pattern(_SYMBOL).findall(text)
    reader = _Reader(symbols, as_python=as_python)
    try:
        value = reader.sum(0)
    except (ZeroDivisionError, OverflowError) as error:
        raise ArithmeticRefused("has no value") from error
    if reader.peek():
        raise ArithmeticRefused("not arithmetic")
    return Computed(value, tuple(symbol for symbol in symbols if _is_numeral(symbol)))


def _is_numeral(symbol: str) -> bool:
    return symbol[0].isdigit() or (symbol[0] == "." and len(symbol) > 1)


class _Reader:
    """Recursive descent, one method for each level of precedence."""

    def __init__(self, symbols: list[str], *, as_python: bool) -> None:
        self._symbols = symbols
        self._position = 0
        self._as_python = as_python

    def peek(self) -> str:
        """Return the next symbol; empty at the end."""
        if self._position < len(self._symbols):
            return self._symbols[self._position]
        return ""

    def _take(self) -> str:
        symbol = self.peek()
        self._position += 1
        return symbol

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.peek() in {"+", "-"}:
            if self._take() == "+":
                value += self._product(depth)
            else:
                value -= self._product(depth)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while self.peek() in {"*", "/", "//"}:
            operator = self._take()
            other = self._signed(depth)
            if operator == "*":
                value *= other
            elif operator == "/":
                value /= other
            else:
                self._refuse_unless_python()
                value = Fraction(value // other)
        return value

    def _signed(self, depth: int) -> Fraction:
        is_negative = False
        while self.peek() in {"+", "-"}:
            is_negative ^= self._take() == "-"
        value = self._power(depth)
        return -value if is_negative else value

    def _power(self, depth: int) -> Fraction:
        base = self._atom(depth)
        if self.peek() != "**":
            return base
        self._refuse_unless_python()
        self._take()
        self._refuse_if_deep(depth)
        exponent = self._signed(depth + 1)
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * bits > MAX_POWER_BITS:
                raise ArithmeticRefused("a power is too large")
            return Fraction(base**exponent.numerator)
        power: Any = float(base) ** float(exponent)
        if isinstance(power, complex):
            raise ArithmeticRefused("has no real value")
        return Fraction(power)

    def _atom(self, depth: int) -> Fraction:
        symbol = self._take()
        if symbol == "(":
            self._refuse_if_deep(depth)
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ArithmeticRefused("a parenthesis is not closed")
            return value
        if not symbol or not _is_numeral(symbol):
            raise ArithmeticRefused("not arithmetic")
        if "." in symbol:
            self._refuse_unless_python()
        elif self._as_python and symbol[0] == "0" and symbol.strip("0"):
            raise ArithmeticRefused("Python has no numbers such as 007")
        if len(symbol) > MAX_DIGITS:
            raise ArithmeticRefused("a number is too long")
        return Fraction(symbol)

    def _refuse_unless_python(self) -> None:
        if not self._as_python:
            raise ArithmeticRefused("only + - * / and parentheses are allowed")

    def _refuse_if_deep(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise ArithmeticRefused("nested too deep")
