"""The filter language of the run list: text into a tree, or an error with its span.

    query = and { "or" and }          state:running reward/mean.last > 0.5
    and   = not { ["and"] not }       (tag:baseline or tag:final) -archived
    not   = ("-" | "not") not | "(" query ")" | term
    term  = key operator value | text

Operators are : = != < <= > >= ~ !~ (":" is "=", "~" is "contains"). A value is a word,
several separated by commas, or "quoted". A word alone is a flag such as `starred`, or a
text to search for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dashboard.project.errors import UserError

FLAGS = ("starred", "locked", "archived", "trashed")
QUOTED = r'"(?:[^"\\]|\\.)*"'

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


class QueryError(UserError):
    """An error in the characters `start` to `end` of a query."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__("runs.bad_query", message)
        self.start, self.end = start, max(end, start + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Term):
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag(Term):
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    text: str
    is_quoted: bool = False

    @property
    def is_none(self) -> bool:
        return self.text.lower() == "none" and not self.is_quoted


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare(Term):
    key: str
    operator: str  # one of OPERATORS, but for ":"
    values: tuple[Value, ...]
    value_start: int = 0


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


@dataclass(frozen=True, slots=True)
class And:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    nodes: tuple[Node, ...]


Node = Term | Not | And | Or
EVERYTHING = And(())


def walk(node: Node) -> Iterator[Term]:
    """List its terms, left to right."""
    if isinstance(node, Term):
        yield node
    elif isinstance(node, Not):
        yield from walk(node.node)
    else:
        for child in node.nodes:
            yield from walk(child)


def parse(text: str) -> Node:
    """Parse a query into its tree; an empty one matches everything.

    >>> parse("lr > 1").key
    'lr'
    """
    if len(text) > MAX_LENGTH:
        raise QueryError(
            f"A query has at most {MAX_LENGTH:,} characters; got {len(text):,}.",
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
            raise self._error('This ")" has no matching "(".', 1)
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
            raise self._error(f"A query nests at most {MAX_DEPTH} levels deep.", 1)
        if self._is_over:
            raise self._error("A term is missing here.", 1)
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
            raise QueryError('This "(" has no matching ")".', opened, opened + 1)
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
                    f'"{word}" needs a term before it. To search for the word, put it '
                    "in quotes.",
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
            raise self._error(f"A value is missing after {key}{operator}.", 1)
        at = self._at
        values = tuple(_values(match[0]))
        if not values:
            raise self._error("A value is missing before the comma.", len(match[0]))
        if len(values) > 1 and operator in ("<", "<=", ">", ">="):
            raise self._error(
                f"{operator} takes one value; got {len(values)}.", len(match[0])
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
        """Tell whether this word follows, not as a key or a part of a longer word."""
        match = _WORD.match(self._text, self._at)
        if match is None or match[0].lower() != word:
            return False
        return not _OPERATOR.match(
            _SPACE.sub("", self._text[match.end() : match.end() + 20])
        )

    def _take_word(self, word: str) -> bool:
        if self._is_over or not self._sees_word(word):
            return False
        self._move(len(word))
        return True

    def _unreadable(self) -> QueryError:
        if self._next == '"':
            return self._unclosed_quote()
        if self._next == ")":
            return self._error("A term is missing before this.", 1)
        operator = _OPERATOR.match(self._text, self._at)
        assert operator, self._text
        return self._error(
            f"A key is missing before {operator[0]}, as in state{operator[0]}running. "
            "To search for this character, put it in quotes.",
            len(operator[0]),
        )

    def _unclosed_quote(self) -> QueryError:
        return self._error(
            "This quote has no closing quote.", len(self._text) - self._at
        )

    def _error(self, message: str, length: int) -> QueryError:
        return QueryError(message, self._at, self._at + length)


def _values(word: str) -> Iterator[Value]:
    """Split the values at commas outside quotes."""
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


def quote(text: str) -> str:
    """Write a text as a query does, so that it is parsed as this text."""
    is_plain = re.fullmatch(r"[\w./@+#][\w./@+#-]*", text)
    is_word = text.lower() in ("and", "or", "not", "none", *FLAGS)
    if is_plain and not is_word:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquote(word: str) -> str:
    """Return the text of a word with bare and quoted parts."""
    return "".join(
        re.sub(r"\\(.)", r"\1", part[1:-1], flags=re.DOTALL)
        if part.startswith('"')
        else part
        for part in re.split(rf"({QUOTED})", word)
    )
