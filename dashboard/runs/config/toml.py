"""A run's configuration as TOML: written, parsed, and its errors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from dashboard.project.errors import UserError
from dashboard.project.schema_forms import explain, message_of, quote
from dashboard.rewards.recipe_text import read_json
from dashboard.runs.config.fields import all_fields, errors_of
from trainer.config import RunConfig, has_long_key, parse_toml_text

MAX_DEPTH = 20
# Longer whole numbers are not a setting's, and Python refuses to write them out.
MAX_NUMBER = 10**18
MAX_PARTS = 16  # of a key

MAX_LENGTH = 262_144  # characters; the longest preset has a thirtieth of it
MAX_PROBLEMS = 20
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TomlProblem:
    """An error, with the setting and the value that are wrong.

    >>> str(TomlProblem(key="seed", value="“x”", sentence="Give a number."))
    'seed = “x”: Give a number.'
    """

    sentence: str
    key: str = ""
    value: str = ""
    code: str = ""

    def __str__(self) -> str:
        setting = f"{self.key} = {self.value}" if self.value else self.key
        return f"{setting}: {self.sentence}" if setting else self.sentence


def read_toml(text: str) -> dict[str, Any]:
    """Return the parsed tree; UserError says where the text is wrong."""
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


def find_toml_problems(tree: dict[str, Any]) -> list[TomlProblem]:
    """List what the engine refuses of `tree`, with the settings' names."""
    return [_problem(error) for error in errors_of(tree)[:MAX_PROBLEMS]]


def _problem(error: Mapping[str, Any]) -> TomlProblem:
    loc = tuple(error["loc"])
    key = ".".join(map(str, loc))
    if not loc:  # the message names the settings that conflict
        return TomlProblem(sentence=message_of(error))
    if error["type"] == "missing":
        return TomlProblem(key=key, sentence="This setting is required. Add it.")
    value = error["input"]
    is_leaf = not isinstance(value, dict | list)
    return TomlProblem(
        key=key,
        value=quote(value) if is_leaf else "",
        sentence=_sentence(key, loc, error),
    )


def _sentence(key: str, loc: Sequence[str | int], error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, all_fields(), n=1)
        if not near:  # as likely put into the wrong part
            near = [p for p in all_fields() if p.rpartition(".")[2] == loc[-1]][:1]
        remedy = f"Did you mean {near[0]}?" if near else "Remove it."
        return f"Unknown setting. {remedy}"
    if key in all_fields():
        return explain(all_fields()[key], error)
    return f"{message_of(error).rstrip('.')}. Fix or remove it."


def read_phases(text: str) -> list[Any]:
    """Read the list that RunConfig validates; UserError says what is wrong."""
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
    """Write them as TOML, or as JSON if a setting is null, which TOML lacks."""
    if not phases:
        return ""
    if any(value is None for value in _leaves(list(phases))):
        return json.dumps(phases, indent=2, ensure_ascii=False)
    tables = [
        {key: phase[key] for key in phase if key != "changes" or phase[key]}
        for phase in phases
    ]
    return "\n".join(map(_write_phase, tables))


def _write_phase(phase: Mapping[str, Any]) -> str:
    """Write a table of its own: tomli_w joins short ones to a list in one line."""
    return "[[phases]]\n" + re.sub(r"(?m)^\[+", r"\g<0>phases.", tomli_w.dumps(phase))


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def write_toml(config: RunConfig) -> str:
    return write_toml_tree(config.model_dump(mode="json"))


def write_toml_tree(tree: dict[str, Any]) -> str:
    """TOML has no null: a setting without a value is omitted, or written as none."""
    # Omitted, these would fall back to the default and the run's value.
    tree["optim"] = _name_absent(tree["optim"])
    for phase in tree["phases"]:
        changes = phase["changes"]
        phase["changes"] = {part: _name_absent(changes[part]) for part in changes}
    whole = _without_absent(tree)
    phases = whole.pop("phases")
    return "\n".join([tomli_w.dumps(whole), *map(_write_phase, phases)])


def _name_absent(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: ABSENT if value is None else value for n, value in settings.items()}


def _without_absent(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _without_absent(v) for k, v in tree.items() if v is not None}
    if isinstance(tree, list):
        return [_without_absent(value) for value in tree if value is not None]
    return tree
