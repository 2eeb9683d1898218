"""What a query of the run list says, as a tree; and how words are quoted in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FLAGS = ("starred", "locked", "archived", "trashed")
QUOTED = r'"(?:[^"\\]|\\.)*"'


class QueryError(ValueError):
    """The sentence is for the user; `start` and `end` are the place in the query."""

    def __init__(self, sentence: str, start: int, end: int) -> None:
        super().__init__(sentence)
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
    """Its terms, left to right."""
    if isinstance(node, Term):
        yield node
    elif isinstance(node, Not):
        yield from walk(node.node)
    else:
        for one in node.nodes:
            yield from walk(one)


def quote(text: str) -> str:
    """As a query writes it, so that it is read as this text and nothing else."""
    is_plain = re.fullmatch(r"[\w./@+#][\w./@+#-]*", text)
    is_word = text.lower() in ("and", "or", "not", "none", *FLAGS)
    if is_plain and not is_word:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquote(word: str) -> str:
    """A word of bare and quoted parts, as it is meant."""
    parts = re.split(rf"({QUOTED})", word)
    return "".join(_unquoted(part) if part.startswith('"') else part for part in parts)


def _unquoted(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part[1:-1], flags=re.DOTALL)


def join_or(words: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
