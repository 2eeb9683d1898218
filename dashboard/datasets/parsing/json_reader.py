"""JSON lines, and JSON documents: a list of objects, or an object that holds one.

A document is read in pieces, with one list item in memory at a time. Unlike Python's
parser, this one refuses duplicate keys and huge integers; `check_value` refuses NaN.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TextIO

from dashboard.datasets.limits import MAX_COLUMNS, MAX_DIGITS, MAX_LINE_CHARS
from dashboard.datasets.parsing.records import (
    SHOWN_CHARS,
    Parsed,
    Record,
    Refusal,
    Unusable,
    excerpt,
    quote,
    refuse_names,
    too_deep,
    too_many_digits,
)
from dashboard.datasets.parsing.streams import (
    Line,
    Source,
    Unreadable,
    open_text,
    read_lines,
    refuse_encoding,
    refuse_text,
)

PIECE_CHARS = 2**20
SAVE = "Check that the file is complete and that a JSON library wrote it."
TOO_LONG = (
    f"A value is longer than {MAX_LINE_CHARS:,} characters.",
    "Shorten the row. Text this long does not fit a prompt.",
)
_SPACE = re.compile(r"[ \t\n\r]*")
_LIST = re.compile(r"\[[ \t\n\r]*")


def read_jsonl(source: Source) -> Iterator[Parsed]:
    for line in read_lines(source, newline=None):
        if line.refusal:
            yield line.refusal
        elif line.text.strip():
            yield _record(line)


def _record(line: Line) -> Parsed:
    try:
        tree = decoder.decode(line.text)
    except json.JSONDecodeError as error:
        return Refusal(
            line=line.number,
            value=excerpt(line.text, error.pos),
            problem=f"Invalid JSON: {reason(error)}.",
            remedy="Write one JSON object per line, with keys and strings in double "
            "quotes.",
        )
    except RecursionError:
        deep = too_deep("")
        return Refusal(
            line=line.number,
            value=excerpt(line.text),
            problem=deep.problem,
            remedy=deep.remedy,
        )
    except Unusable as error:
        return Refusal(
            line=line.number,
            value=quote(error.value),
            problem=error.problem,
            remedy=error.remedy,
        )
    if not isinstance(tree, dict):
        return Refusal(
            line=line.number,
            value=quote(tree),
            problem="The line is not a JSON object.",
            remedy='Write it as an object with named columns, {"prompt": …}.',
        )
    return refuse_names(line.number, list(tree)) or Record(line.number, tree)


def reason(error: json.JSONDecodeError) -> str:
    return error.msg[0].lower() + error.msg[1:]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = Counter(key for key, _ in pairs)
        twice = next(key for key, count in keys.items() if count > 1)
        raise Unusable(
            "An object has the same key twice.", "Keep one of the two.", twice
        )
    return tree


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise too_many_digits(digits)
    return int(digits)


decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole)
# Finds the end of a value that `decoder` refuses.
_lenient = json.JSONDecoder(parse_int=len)


def read_json_file(source: Source) -> Iterator[Parsed]:
    with open_text(source, newline=None) as file:
        text = _Text(file)
        try:
            first = text.peek()
            if first == "[":
                yield from _entries(text)
            elif first == "{":
                yield from _wrapped(text)
            elif first:
                raise text.broken(
                    "The file starts with neither a list nor an object.",
                    'Write it as [{"prompt": …}, …].',
                )
            if text.peek():
                raise text.broken(
                    "There is text after the end of the JSON document.",
                    "Remove it. For one object per line, use the extension .jsonl.",
                )
        except UnicodeError:
            yield refuse_encoding(text.line, file)
        except Unreadable as error:
            line = error.refusal.line or text.line
            yield replace(error.refusal, line=line, ends_file=True)


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
    value = text.read_value(row)
    if isinstance(value, Refusal):
        return value
    if not isinstance(value, dict):
        return Refusal(
            line=line,
            row=row,
            value=quote(value),
            problem="The list item is not a JSON object.",
            remedy='Write it as an object with named columns, {"prompt": …}.',
        )
    if refusal := refuse_names(line, list(value)):
        return replace(refusal, row=row)
    return Record(line, value, row)


def _wrapped(text: _Text) -> Iterator[Parsed]:
    """Yield the entries of the one list of objects that the object holds."""
    text.skip("{")
    list_name: str | None = None
    names: set[str] = set()
    while text.peek() != "}":
        name = _name(text, names)
        text.skip(":")
        if text.peek() and text.begins_list():
            if list_name is not None:
                raise text.broken(
                    f"The object has two lists of objects, {quote(list_name)} and "
                    f"{quote(name)}.",
                    "Save each list as a separate file.",
                )
            list_name = name
            yield from _entries(text)
        else:
            _part(text)
        if text.peek() != "}":
            text.skip(",")
    if list_name is None:
        raise text.broken(
            "The object has no list of objects.",
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
                problem="A key of the object is not a string, or occurs twice.",
                remedy="Give each value a unique key in double quotes.",
            )
        )
    names.add(name)
    if len(names) > MAX_COLUMNS:
        raise text.broken(
            f"The object has more than {MAX_COLUMNS:,} keys.",
            'Write the file as [{"prompt": …}, …].',
        )
    return name


def _part(text: _Text) -> Any:
    """Read a key or value outside the list."""
    value = text.read_value()
    if isinstance(value, Refusal):
        raise Unreadable(value)
    return value


class _Text:
    """A window that moves along the file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._is_read = False
        self.line = 1

    def peek(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space
            self._move(space.end())
            if self._at < len(self._text) or not self._read_on():
                return self._text[self._at : self._at + 1]

    def begins_list(self) -> bool:
        """Return whether a list of objects begins here."""
        while begin := _LIST.match(self._text, self._at):
            if begin.end() < len(self._text) or not self._read_on():
                return self._text.startswith("{", begin.end())
        return False

    def skip(self, char: str) -> None:
        seen = self.peek()
        if seen != char:
            what = quote(seen) if seen else "the end of the file"
            raise self.broken(
                f"Invalid JSON: expected {char}, found {what}.",
                SAVE,
            )
        self._move(self._at + 1)

    def read_value(self, row: int | None = None) -> Any:
        """Return the next value, or why it cannot be kept; Unreadable if it is not
        JSON.
        """
        if self.peek() in ("", ",", ":", "]", "}"):
            raise self.broken("Invalid JSON: a value is missing here.", SAVE)
        while True:
            try:
                value, end = self._decode()
            except json.JSONDecodeError as error:
                if not self._read_on():
                    raise self._not_json(error, row) from error
            except RecursionError as error:
                deep = too_deep("")
                refusal = self._refuse(deep.problem, deep.remedy)
                raise Unreadable(replace(refusal, row=row)) from error
            else:
                # A number may go on.
                if end < len(self._text) or not self._read_on():
                    break
        text = self._text[self._at : end]
        if len(text) > MAX_LINE_CHARS:
            raise self.broken(*TOO_LONG)
        if not isinstance(value, Refusal):
            value = refuse_text(self.line, text) or value
        self._move(end)
        return replace(value, row=row) if isinstance(value, Refusal) else value

    def _decode(self) -> tuple[Any, int]:
        """Return the value, or why it cannot be kept, and where it ends."""
        try:
            return decoder.raw_decode(self._text, self._at)
        except Unusable as error:
            _, end = _lenient.raw_decode(self._text, self._at)
            return self._refuse(error.problem, error.remedy, error.value), end

    def broken(self, problem: str, remedy: str) -> Unreadable:
        return Unreadable(self._refuse(problem, remedy))

    def _refuse(self, problem: str, remedy: str, seen: Any = None) -> Refusal:
        text = self._text[self._at : self._at + SHOWN_CHARS + 1]
        return Refusal(
            line=self.line,
            value=excerpt(text) if seen is None else quote(seen),
            problem=problem,
            remedy=remedy,
        )

    def _not_json(self, error: json.JSONDecodeError, row: int | None) -> Unreadable:
        is_cut_off = error.pos >= len(self._text.rstrip())
        if is_cut_off or error.msg.startswith("Unterminated"):
            if self._is_read:
                return self.broken("The file ends inside a value.", SAVE)
            return self.broken(*TOO_LONG)
        refusal = self._refuse(
            f"Invalid JSON: {reason(error)}.",
            "Write keys and strings in double quotes, without a trailing comma.",
        )
        line = self.line + self._text.count("\n", self._at, error.pos)
        return Unreadable(replace(refusal, line=line, row=row))

    def _move(self, index: int) -> None:
        self.line += self._text.count("\n", self._at, index)
        self._at = index

    def _read_on(self) -> bool:
        """False at the end, or if the window exceeds the longest value."""
        if self._is_read or len(self._text) - self._at > MAX_LINE_CHARS:
            return False
        if piece := self._file.read(PIECE_CHARS):
            self._text = self._text[self._at :] + piece
            self._at = 0
        self._is_read = not piece
        return bool(piece)
