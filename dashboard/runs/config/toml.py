"""A run's configuration as TOML: written, parsed, and its errors."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dashboard.project.errors import UserError
from dashboard.rewards.recipe_text import read_json
from dashboard.runs.config.errors import (
    default_heals,
    errors_of,
    message_of,
    quote,
    sentence_of,
)
from dashboard.runs.config.fields import all_fields
from trainer.config import RunConfig, has_long_key, parse_toml_text

MAX_DEPTH = 20
# Longer whole numbers are not a setting's, and Python refuses to write them out.
MAX_NUMBER = 10**18
MAX_PARTS = 16  # of a key

MAX_LENGTH = 262_144  # characters; the longest preset has a thirtieth of it
MAX_PROBLEMS = 20
MAX_TRIED = 50  # lines searched for a key
MAX_READ = 2_000_000  # characters, to find the lines of all problems: a second
MAX_PHASES_LENGTH = 65_536  # characters; a hundred phases need a fifth of it
MAX_PHASES = 100
EXAMPLE = """\
[[phases]]
name = "sft"
num_steps = 50
changes.rollout = { source = "dataset", group_size = 1 }
changes.advantage = { credit = "ones" }

[[phases]]
name = "grpo"
num_steps = 150
"""
ABSENT = "none"  # as the engine reads it
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
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
    code: str = ""

    def __str__(self) -> str:
        what = f"{self.key} = {self.value}" if self.value else self.key
        where = [f"Line {self.line}"] if self.line else []
        place = ", ".join(where + ([what] if what else []))
        return f"{place}: {self.sentence}" if place else self.sentence


def read_toml(text: str) -> dict[str, Any]:
    """The parsed tree; UserError says where the text is wrong."""
    if len(text) > MAX_LENGTH:
        raise UserError(
            "toml.too_long",
            f"The TOML has {len(text):,} characters; at most {MAX_LENGTH:,} are "
            "allowed. Remove settings that have their default.",
        )
    if "\x00" in text:
        raise UserError(
            "toml.nul_character", "The TOML contains a NUL character. Remove it."
        )
    tree = parse_toml(text)
    refuse_unstorable(tree, what="Settings")
    return tree


def parse_toml(text: str) -> dict[str, Any]:
    """UserError says where the text is wrong."""
    if has_long_key(text, max_parts=MAX_PARTS):
        raise UserError(
            "toml.long_key",
            f"Invalid TOML: a key has more than {MAX_PARTS} dotted parts. Shorten it.",
        )
    try:
        return parse_toml_text(text)
    except ValueError as error:
        raise UserError("toml.invalid", f"Invalid TOML: {error}.") from None


def refuse_unstorable(tree: Any, *, what: str, depth: int = 0) -> None:
    """UserError if it parses, but neither the database nor JSON can store it."""
    if depth > MAX_DEPTH:
        raise UserError(
            "settings.too_deep", f"{what} can nest at most {MAX_DEPTH} levels deep."
        )
    if isinstance(tree, int) and abs(tree) > MAX_NUMBER:
        raise UserError(
            "settings.number_too_large",
            "A number is larger than 10^18. Enter a smaller one.",
        )
    if isinstance(tree, str) and ("\x00" in tree or shown(tree) != tree):
        raise UserError(
            "settings.bad_character",
            f"“{shown(tree)[:60]}” contains a NUL character or an unpaired surrogate. "
            "Remove it.",
        )
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        for part in tree:
            refuse_unstorable(part, what=what, depth=depth + 1)


def shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def find_toml_problems(lines: Lines, tree: dict[str, Any]) -> list[TomlProblem]:
    """What the engine refuses of `tree`, each with its line."""
    return [_problem(lines, tree, error) for error in errors_of(tree)[:MAX_PROBLEMS]]


def _problem(
    lines: Lines, tree: dict[str, Any], error: Mapping[str, Any]
) -> TomlProblem:
    loc = tuple(error["loc"])
    key = ".".join(map(str, loc))
    if not loc:
        message = message_of(error)
        healing = (path for path in all_fields() if default_heals(tree, path, message))
        found = (lines.line_of(path.split(".")) for path in healing)
        return TomlProblem(line=next(filter(None, found), None), sentence=message)
    if error["type"] == "missing":
        return TomlProblem(
            line=lines.line_of(loc[:-1]),
            key=key,
            sentence="This setting is required. Add it.",
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
        remedy = f"Did you mean {near[0]}?" if near else "Remove it."
        return f"Unknown setting. {remedy}"
    if key in all_fields():
        return sentence_of(all_fields()[key], error)
    return f"{message_of(error).rstrip('.')}. Fix or remove it."


class Lines:
    """Line numbers of keys in a text, as far as they are found in about a second."""

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
        """The tree of the first lines, plus those that complete the last value."""
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


def read_phases(text: str) -> list[Any]:
    """The list that RunConfig validates; UserError says where the text is wrong."""
    text = text.removeprefix("\ufeff").strip()
    if not text:
        return []
    if len(text) > MAX_PHASES_LENGTH:
        raise UserError(
            "phases.too_long",
            f"The text has {len(text):,} characters; at most {MAX_PHASES_LENGTH:,} are "
            "allowed. Remove values that equal the settings above.",
        )
    is_json = text.startswith("{") or text.removeprefix("[").lstrip()[:1] in ("{", "]")
    tree = read_json(text) if is_json else parse_toml(text)
    if isinstance(tree, dict):
        others = sorted(set(tree) - {"phases"})
        if others or "phases" not in tree:
            seen = f"“{shown(others[0])}”" if others else "no phase"
            raise UserError(
                "phases.unknown_key",
                f"Enter only phases, each starting with [[phases]]; got {seen}.",
            )
        tree = tree["phases"]
    if not isinstance(tree, list):
        raise UserError(
            "phases.not_a_list", "Phases must be a list. Start each with [[phases]]."
        )
    if len(tree) > MAX_PHASES:
        raise UserError(
            "phases.too_many",
            f"There are {len(tree):,} phases; at most {MAX_PHASES} are allowed. Merge "
            "some.",
        )
    refuse_unstorable(tree, what="Phases")
    return tree


def write_phases(phases: Sequence[Any]) -> str:
    """TOML; JSON if a setting is changed to null, which TOML lacks."""
    if not phases:
        return ""
    text = json.dumps(phases, indent=2, ensure_ascii=False)
    if any(value is None for value in _leaves(json.loads(text))):
        return text
    return "\n".join(map(_write_phase, phases))


def _write_phase(phase: Mapping[str, Any]) -> str:
    """
    >>> print(_write_phase({"name": "sft", "changes": {"loss": {"clip_low": 0.1}}}))
    [[phases]]
    name = "sft"
    changes.loss = { clip_low = 0.1 }
    """
    own = [f"{key} = {toml_value(phase[key])}" for key in phase if key != "changes"]
    changes = [
        f"changes.{part} = {toml_value(values)}"
        for part, values in (phase.get("changes") or {}).items()
    ]
    return "\n".join(["[[phases]]", *own, *changes]) + "\n"


def write_toml(config: RunConfig) -> str:
    return write_toml_tree(config.model_dump(mode="json"))


def write_toml_tree(tree: dict[str, Any]) -> str:
    """TOML has no null: a setting without a value is omitted, or written as none."""
    # Omitted, these would fall back to the default and the run's value.
    tree["optim"] = _name_absent(tree["optim"])
    for phase in tree["phases"]:
        changes = phase["changes"]
        phase["changes"] = {part: _name_absent(changes[part]) for part in changes}
    return "\n".join(_toml_lines(tree, "")).strip() + "\n"


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _name_absent(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: ABSENT if value is None else value for n, value in settings.items()}


def _toml_lines(tree: Mapping[str, Any], path: str) -> Iterator[str]:
    keys = {_toml_key(name): value for name, value in tree.items()}
    for name, value in keys.items():
        if value is not None and not _is_table(value):
            yield f"{name} = {toml_value(value)}"
    for name, value in keys.items():
        if isinstance(value, dict):
            yield from ("", f"[{path}{name}]", *_toml_lines(value, f"{path}{name}."))
        elif _is_table(value):
            for row in value:
                yield from (
                    "",
                    f"[[{path}{name}]]",
                    *_toml_lines(row, f"{path}{name}."),
                )


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, dict) for v in value)
    )


def toml_value(value: Any) -> str:
    """JSON strings, numbers, booleans and arrays are valid TOML, except for DEL."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(v) for v in value if v is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else str(toml_value(name))
