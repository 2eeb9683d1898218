"""The filter language of the run list: text into a tree, or an error with its place.

    query = and { "or" and }          state:running reward/mean.last > 0.5
    and   = not { ["and"] not }       (tag:baseline or tag:final) -archived
    not   = ("-" | "not") not | "(" query ")" | term
    term  = key operator value | text

Operators are : = != < <= > >= ~ !~ (":" is "=", "~" is "contains"). A value is a word,
several with commas between them, or "quoted". A word alone is a flag such as `starred`,
or a text to look for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from dashboard.runs.table.expressions import (
    EVERYTHING,
    FLAGS,
    QUOTED,
    And,
    Compare,
    Flag,
    Node,
    Not,
    Or,
    QueryError,
    Text,
    Value,
    unquote,
)

MAX_LENGTH = 2_000
MAX_DEPTH = 20
MAX_TERMS = 100
OPERATORS = ("!=", "!~", "<=", ">=", ":", "=", "<", ">", "~")

_SPACE = re.compile(r"\s+")
_OPERATOR = re.compile("|".join(map(re.escape, OPERATORS)))
# A key or a text ends where an operator begins; a value, at the next space.
_WORD = re.compile(rf'(?:{QUOTED}|(?!!=|!~)[^\s()":=<>~])+')
_VALUE = re.compile(rf'(?:{QUOTED}|[^\s()"])+')
_PARTS = re.compile(rf'({QUOTED})|(,)|([^",]+)')


def parse(text: str) -> Node:
    """The tree of a query; an empty one asks for everything.

    >>> parse("lr > 1").key
    'lr'
    """
    if len(text) > MAX_LENGTH:
        raise QueryError(
            f"A query has at most {MAX_LENGTH:,} characters; this one has "
            f"{len(text):,}.",
            MAX_LENGTH,
            len(text),
        )
    return _Parser(text).parse()


class _Parser:
    """Recursive descent; `_at` is the next character that was not read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._num_terms = 0

    def parse(self) -> Node:
        if not self._text.strip():
            return EVERYTHING
        self._skip_space()
        node = self._read_or(0)
        if not self._is_over:  # only a ")" ends an expression early
            raise self._error('There is no "(" before this ")".', 1)
        return node

    def _read_or(self, depth: int) -> Node:
        nodes = [self._read_and(depth)]
        while self._take_word("or"):
            nodes.append(self._read_and(depth))
        return nodes[0] if len(nodes) == 1 else Or(tuple(nodes))

    def _read_and(self, depth: int) -> Node:
        nodes = [self._read_not(depth)]
        while True:
            is_named = self._take_word("and")
            if not is_named and (self._is_over or self._next == ")"):
                break
            if not is_named and self._sees_word("or"):
                break
            nodes.append(self._read_not(depth))
        return nodes[0] if len(nodes) == 1 else And(tuple(nodes))

    def _read_not(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error(f"This is nested deeper than {MAX_DEPTH} levels.", 1)
        if self._is_over:
            raise self._error("Something to look for is missing here.", 1)
        if self._next == "-" and self._text[self._at + 1 : self._at + 2].strip():
            self._at += 1
            return Not(self._read_not(depth + 1))
        if self._take_word("not"):
            return Not(self._read_not(depth + 1))
        if self._next == "(":
            return self._read_group(depth)
        return self._read_term()

    def _read_group(self, depth: int) -> Node:
        opened = self._at
        self._move(1)
        node = self._read_or(depth + 1)
        if self._is_over:
            raise QueryError('This "(" is never closed.', opened, opened + 1)
        self._move(1)
        return node

    def _read_term(self) -> Node:
        start = self._at
        self._num_terms += 1
        if self._num_terms > MAX_TERMS:
            raise self._error(f"A query has at most {MAX_TERMS} terms.", 1)
        for word in ("and", "or"):
            if self._sees_word(word):
                raise self._error(
                    f'"{word}" stands between two terms. Write what comes before it, '
                    f'or "{word}" in quotes to look for the word.',
                    len(word),
                )
        match = _WORD.match(self._text, start)
        if match is None:
            raise self._unreadable()
        end = match.end()
        self._move(end - start)
        operator = _OPERATOR.match(self._text, self._at)
        if operator:
            return self._read_compare(start, match[0], operator[0])
        word = unquote(match[0])
        if match[0].lower() in FLAGS:
            return Flag(name=word.lower(), start=start, end=end)
        return Text(text=word, start=start, end=end)

    def _read_compare(self, start: int, key: str, operator: str) -> Compare:
        self._move(len(operator))
        match = _VALUE.match(self._text, self._at)
        if match is None:
            if not self._is_over and self._next == '"':
                raise self._unclosed_quote()
            raise self._error(f"A value is missing behind {key}{operator}.", 1)
        at = self._at
        values = tuple(_values(match[0]))
        if not values:
            raise self._error("A value is missing before the comma.", len(match[0]))
        if len(values) > 1 and operator in ("<", "<=", ">", ">="):
            raise self._error(
                f"{operator} compares with one value; got {len(values)}.", len(match[0])
            )
        self._move(len(match[0]))
        return Compare(
            key=unquote(key),
            operator="=" if operator == ":" else operator,
            values=values,
            start=start,
            end=match.end(),
            value_start=at,
        )

    @property
    def _is_over(self) -> bool:
        return self._at >= len(self._text)

    @property
    def _next(self) -> str:
        return self._text[self._at]

    def _move(self, count: int) -> None:
        self._at += count
        self._skip_space()

    def _skip_space(self) -> None:
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()

    def _sees_word(self, word: str) -> bool:
        """This word by itself: no key, and no part of a longer one."""
        match = _WORD.match(self._text, self._at)
        if match is None or match[0].lower() != word:
            return False
        behind = _SPACE.sub("", self._text[match.end() : match.end() + 20])
        return not _OPERATOR.match(behind)

    def _take_word(self, word: str) -> bool:
        if self._is_over or not self._sees_word(word):
            return False
        self._move(len(word))
        return True

    def _unreadable(self) -> QueryError:
        if self._next == '"':
            return self._unclosed_quote()
        if self._next == ")":
            return self._error("Something to look for is missing before this.", 1)
        operator = _OPERATOR.match(self._text, self._at)
        assert operator, self._text
        return self._error(
            f"A key is missing before {operator[0]}, as in state{operator[0]}running. "
            "A text with such a character is written in quotes.",
            len(operator[0]),
        )

    def _unclosed_quote(self) -> QueryError:
        return self._error("This quote is never closed.", len(self._text) - self._at)

    def _error(self, sentence: str, length: int) -> QueryError:
        return QueryError(sentence, self._at, self._at + length)


def _values(word: str) -> Iterator[Value]:
    """What stands between commas; a comma within quotes is no such comma."""
    text, is_quoted = "", False
    for quoted, comma, plain in _PARTS.findall(word):
        if comma:
            if text or is_quoted:
                yield Value(text=text, is_quoted=is_quoted)
            text, is_quoted = "", False
        else:
            text += unquote(quoted) if quoted else plain
            is_quoted = is_quoted or bool(quoted)
    if text or is_quoted:
        yield Value(text=text, is_quoted=is_quoted)


# Values as a query writes them: numbers, spans of time, moments.

UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def read_literal_number(text: str) -> float | None:
    """A finite number as people write it; None for anything else.

    >>> read_literal_number("1e-5"), read_literal_number("5%"), read_literal_number("a")
    (1e-05, 0.05, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return value if math.isfinite(value) else None


def read_number(text: str, key: str) -> float:
    number = read_literal_number(text)
    if number is None and key == "duration":
        number = _seconds(text)
    if number is None:
        needed = "a span such as 90min, 2h or 1d" if key == "duration" else "a number"
        raise ValueError(f"{key} is compared with {needed}; got {text!r}.")
    return number


def read_moment(text: str, key: str) -> datetime:
    """2026-11-01, 2026-11-01T12:30 (UTC), or how long ago: 7d."""
    seconds = _seconds(text)
    if seconds is not None and seconds < 3e9:
        return timezone.now() - timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{key} is compared with a day such as 2026-11-01, a moment such as "
            f"2026-11-01T12:30 (UTC), or how long ago, such as 7d; got {text!r}."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seconds(text: str) -> float | None:
    match = _SPAN.fullmatch(text)
    return float(match[1]) * UNITS[match[2]] if match else None
