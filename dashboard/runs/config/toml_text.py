"""A run's configuration as TOML that somebody typed, and where it errs."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dashboard.runs.config.errors import (
    default_heals,
    errors_of,
    message_of,
    quote,
    sentence_of,
)
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.typed_toml import parse_toml, refuse_unstorable

MAX_LENGTH = 262_144  # characters; the longest preset has a thirtieth of it
MAX_PROBLEMS = 20  # nobody corrects more at a time
MAX_TRIED = 50  # lines on which a key is looked for
MAX_READ = 2_000_000  # characters, to find the lines of all problems: a second
Path = Sequence[str | int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TomlProblem:
    """What is wrong, and where.

    >>> str(TomlProblem(line=3, key="seed", value="“x”", sentence="Give a number."))
    'Line 3, seed = “x”: Give a number.'
    """

    sentence: str
    line: int | None = None
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}" if self.value else self.key
        where = [f"Line {self.line}"] if self.line else []
        place = ", ".join(where + ([what] if what else []))
        return f"{place}: {self.sentence}" if place else self.sentence


def read_toml(text: str) -> dict[str, Any]:
    """The tree it describes; ValueError says where the text is wrong."""
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"This TOML has {len(text):,} characters; {MAX_LENGTH:,} are allowed. "
            "Leave out what is as by default."
        )
    if "\x00" in text:
        raise ValueError("This TOML holds a NUL character. Remove it.")
    tree = parse_toml(text)
    refuse_unstorable(tree, what="Settings")
    return tree


def find_toml_problems(lines: Lines, tree: dict[str, Any]) -> list[TomlProblem]:
    """What the engine refuses of `tree`, each with its line."""
    return [_problem(lines, tree, error) for error in errors_of(tree)[:MAX_PROBLEMS]]


def _problem(
    lines: Lines, tree: dict[str, Any], error: Mapping[str, Any]
) -> TomlProblem:
    loc = tuple(error["loc"])
    key = ".".join(map(str, loc))
    if not loc:
        said = message_of(error)
        healing = (path for path in all_fields() if default_heals(tree, path, said))
        found = (lines.line_of(path.split(".")) for path in healing)
        return TomlProblem(line=next(filter(None, found), None), sentence=said)
    if error["type"] == "missing":
        return TomlProblem(
            line=lines.line_of(loc[:-1]), key=key, sentence="This is missing. Add it."
        )
    value = error["input"]
    is_leaf = not isinstance(value, dict | list)
    return TomlProblem(
        line=lines.line_of(loc),
        key=key,
        value=quote(value) if is_leaf else "",
        sentence=_sentence(key, loc, error),
    )


def _sentence(key: str, loc: Path, error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, all_fields(), n=1)
        if not near:  # as likely put into the wrong part
            named = [p for p in all_fields() if p.rpartition(".")[2] == loc[-1]]
            near = named[:1]
        remedy = f"Write {near[0]}" if near else "Remove it"
        return f"There is no such setting. {remedy}."
    if key in all_fields():
        return sentence_of(all_fields()[key], error)
    return f"{message_of(error).rstrip('.')}. Correct or remove it."


class Lines:
    """Where a text gives what its tree holds, as far as is found in about a second."""

    def __init__(self, text: str, tree: dict[str, Any]) -> None:
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self._lines = text.split("\n")
        self._tree = tree
        self._left = MAX_READ

    def line_of(self, path: Path) -> int | None:
        """The line, from 1, that gives `path` or the innermost table around it."""
        while path and not _has(self._tree, path):
            path = path[:-1]
        names = [part for part in path if isinstance(part, str)]
        if not names:
            return None
        candidates = (n for n, line in enumerate(self._lines, 1) if names[-1] in line)
        for number in islice(candidates, MAX_TRIED):
            if _has(self._read_until(number), path):
                return number
        return None

    def _read_until(self, number: int) -> dict[str, Any]:
        """What the first lines say, and as many more as end the value there."""
        last = min(len(self._lines), number + MAX_TRIED)
        for end in range(number, last + 1):
            begin = "\n".join(self._lines[:end])
            self._left -= len(begin)
            if self._left < 0:
                break
            try:
                return tomllib.loads(begin)
            except tomllib.TOMLDecodeError:
                continue
        return {}


def _has(tree: Any, path: Path) -> bool:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
