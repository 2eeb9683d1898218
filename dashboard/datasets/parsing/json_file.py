"""One JSON document: a list of objects, or an object that holds one such list.

The file is read a piece at a time, and one entry of the list is in memory at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TextIO

from dashboard.datasets.limits import MAX_COLUMNS, MAX_LINE_CHARS
from dashboard.datasets.parsing.lines import open_text, refuse_encoding, refuse_text
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.parsing.refusals import SHOWN_CHARS, Refusal, quote
from dashboard.datasets.parsing.source import Source, Unreadable
from dashboard.datasets.parsing.strict_json import decoder, reason, too_deep
from dashboard.datasets.parsing.values import Unusable

PIECE_CHARS = 2**20
SAVE = "Check that the file was saved whole, by a program that writes JSON."
_SPACE = re.compile(r"[ \t\n\r]*")
# A whole text, the beginning of an unfinished one, or a bracket. Possessive, so that a
# text without end is gone through once.
_MARK = re.compile(r'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
_BARE = re.compile(r"[^\s,\[\]{}\"]*")


def read_json_file(source: Source) -> Iterator[Parsed]:
    with open_text(source, newline=None) as file:
        text = _Text(file)
        try:
            yield from _document(text)
        except UnicodeError:
            yield refuse_encoding(text.line, file)
        except Unreadable as error:
            line = error.refusal.line or text.line
            yield replace(error.refusal, line=line, ends_file=True)


def _document(text: _Text) -> Iterator[Parsed]:
    first = text.peek()
    if first == "[":
        yield from _entries(text)
    elif first == "{":
        yield from _wrapped(text)
    elif first:
        raise text.broken(
            "The file begins with neither a list nor an object.",
            'Write it as [{"prompt": …}, …].',
        )
    if text.peek():
        raise text.broken(
            "Something stands after the end of the JSON document.",
            "Remove it. A file with an object on each line is named .jsonl.",
        )


def _entries(text: _Text) -> Iterator[Parsed]:
    text.skip("[")
    if text.peek() == "]":
        text.skip("]")
        return
    row = 0
    while True:
        row += 1
        yield _entry(text, row)
        if text.peek() == "]":
            text.skip("]")
            return
        text.skip(",")


def _entry(text: _Text, row: int) -> Parsed:
    text.peek()
    line = text.line
    value = text.read_value()
    if isinstance(value, Refusal):
        return replace(value, row=row)
    if not isinstance(value, dict):
        return Refusal(
            line=line,
            row=row,
            value=quote(value),
            problem="The entry of the list is not a JSON object.",
            remedy='Write it as an object with named columns, {"prompt": …}.',
        )
    if refusal := refuse_names(line, list(value)):
        return replace(refusal, row=row)
    return Record(line, value, row)


def _wrapped(text: _Text) -> Iterator[Parsed]:
    """The entries of the one list of objects that the object holds."""
    text.skip("{")
    found: str | None = None
    names: set[str] = set()
    while text.peek() != "}":
        name = _name(text, names)
        text.skip(":")
        if text.peek() == "[" and text.peek(after="[") == "{":
            if found is not None:
                raise text.broken(
                    f"The object holds two lists of objects, {quote(found)} and "
                    f"{quote(name)}.",
                    "Save each of them as a file of its own.",
                )
            found = name
            yield from _entries(text)
        else:
            _part(text)
        if text.peek() != "}":
            text.skip(",")
    if found is None:
        raise text.broken(
            "The object holds no list of objects.",
            'Write the file as [{"prompt": …}, …]; pandas does so with '
            'to_json(orient="records").',
        )
    text.skip("}")


def _name(text: _Text, names: set[str]) -> str:
    name = _part(text)
    if not isinstance(name, str) or name in names:
        raise Unreadable(
            Refusal(
                line=text.line,
                value=quote(name),
                problem="A name in the object is not a text, or occurs twice.",
                remedy="Give each value a name of its own, in double quotes.",
            )
        )
    names.add(name)
    if len(names) > MAX_COLUMNS:
        raise text.broken(
            f"The object has more than {MAX_COLUMNS:,} names beside each other.",
            'Write the file as [{"prompt": …}, …].',
        )
    return name


def _part(text: _Text) -> Any:
    """A name or value beside the list."""
    value = text.read_value()
    if isinstance(value, Refusal):
        raise Unreadable(value)
    return value


def _past(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where what begins there ends, of a pattern that matches nothing, too."""
    match = pattern.match(text, place)
    assert match
    return match.end()


def _may_go_on(problem: Exception) -> bool:
    """Whether the error may be no more than that the text is cut off."""
    if not isinstance(problem, json.JSONDecodeError):
        return False
    is_at_end = problem.pos >= len(problem.doc.rstrip())
    return is_at_end or problem.msg.startswith("Unterminated")


class _Text:
    """A window that moves along the file; what lies behind it is forgotten."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self.line = 1

    def peek(self, after: str = "") -> str:
        """The next character that is no space, "" at the end.

        With `after`, the one behind it.
        """
        while True:
            start = _past(_SPACE, self._text, self._at)
            self._move(start)
            place = start
            if after:
                place = _past(_SPACE, self._text, start + 1)
            if place < len(self._text):
                return self._text[place]
            if len(self._text) - self._at > MAX_LINE_CHARS or not self._read_on():
                return ""

    def skip(self, char: str) -> None:
        seen = self.peek()
        if seen != char:
            what = "the file ends" if not seen else f"{quote(seen)} stands there"
            raise self.broken(
                f"The file is not JSON: where {char} belongs, {what}.",
                SAVE,
            )
        self._move(self._at + 1)

    def read_value(self) -> Any:
        """The next value, or why it cannot be kept; Unreadable if it has no end."""
        if self.peek() in ("", ",", ":", "]", "}"):
            raise self.broken("The file is not JSON: a value is missing here.", SAVE)
        value: Any = None
        while True:
            problem, end = None, None
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, Unusable, RecursionError) as error:
                problem, end = error, self._find_end()
            if end is not None and self._is_sure(end):
                break
            is_long = len(self._text) - self._at > MAX_LINE_CHARS
            if is_long or not self._read_on():
                if end is None:
                    raise self._without_end(problem, is_long)
                break
        text = self._text[self._at : end]
        refusal = refuse_text(self.line, text)
        if problem:
            refusal = self._refuse(problem)
        self._move(end)
        return refusal or value

    def broken(self, problem: str, remedy: str) -> Unreadable:
        seen = self._text[self._at : self._at + 60].strip()
        return Unreadable(
            Refusal(
                line=self.line,
                value=quote(seen),
                problem=problem,
                remedy=remedy,
                ends_file=True,
            )
        )

    def _without_end(self, problem: Exception | None, is_long: bool) -> Unreadable:
        if problem and not _may_go_on(problem):
            return Unreadable(self._refuse(problem))
        if is_long:
            return self.broken(
                f"A value is longer than {MAX_LINE_CHARS:,} characters.",
                "Shorten the row; texts this long do not fit a prompt.",
            )
        return self.broken("The file ends within a value.", SAVE)

    def _refuse(self, problem: Exception) -> Refusal:
        line = self.line
        if isinstance(problem, json.JSONDecodeError):
            line += self._text.count("\n", self._at, problem.pos)
            problem = Unusable(
                f"The entry is not JSON: {reason(problem)}.",
                "Write keys and texts in double quotes, and no comma after the last.",
                self._text[self._at : self._at + SHOWN_CHARS].strip(),
            )
        elif isinstance(problem, RecursionError):
            problem = too_deep(self._text[self._at : self._at + 60])
        assert isinstance(problem, Unusable)
        return Refusal(
            line=line,
            value=quote(problem.value),
            problem=problem.problem,
            remedy=problem.remedy,
        )

    def _is_sure(self, end: int) -> bool:
        """Whether the value ends there whatever comes: a number may go on."""
        return end < len(self._text) or self._text[end - 1] in '"]}'

    def _find_end(self) -> int | None:
        """Where the value that begins here ends, by its brackets and quotes alone."""
        depth, place = 0, self._at
        if self._text[place : place + 1] not in ('"', "[", "{"):
            end = _past(_BARE, self._text, place)
            return end if end > place else None
        while mark := _MARK.search(self._text, place):
            place = mark.end()
            if mark[0] == '"':
                return None
            depth += (mark[0] in "[{") - (mark[0] in "]}")
            if depth == 0:
                return place
        return None

    def _move(self, place: int) -> None:
        self.line += self._text.count("\n", self._at, place)
        self._at = place

    def _read_on(self) -> bool:
        piece = self._file.read(PIECE_CHARS)
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)
