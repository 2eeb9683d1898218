"""A run's phases as text: TOML as the engine's files have them, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.rewards.recipe_text import read_json
from dashboard.runs.config.snapshot import toml_value
from dashboard.runs.config.typed_toml import parse_toml, refuse_unstorable, shown

MAX_LENGTH = 65_536  # characters; a hundred phases need a fifth of it
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


def read_phases(text: str) -> list[Any]:
    """The list that RunConfig validates; ValueError says where the text is wrong."""
    text = text.removeprefix("\ufeff").strip()
    if not text:
        return []
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"These phases have {len(text):,} characters; {MAX_LENGTH:,} are allowed. "
            "Leave out what is as in the settings above."
        )
    is_json = text.startswith("{") or text.removeprefix("[").lstrip()[:1] in ("{", "]")
    tree = read_json(text) if is_json else parse_toml(text)
    if isinstance(tree, dict):
        others = sorted(set(tree) - {"phases"})
        if others or "phases" not in tree:
            seen = f"“{shown(others[0])}”" if others else "nothing"
            raise ValueError(
                f"Only phases belong here, each beginning with [[phases]]; got {seen}."
            )
        tree = tree["phases"]
    if not isinstance(tree, list):
        raise ValueError("Phases are a list: begin each with [[phases]].")
    if len(tree) > MAX_PHASES:
        raise ValueError(
            f"These are {len(tree):,} phases; {MAX_PHASES} are allowed. Join some."
        )
    refuse_unstorable(tree, what="Phases")
    return tree


def write_phases(phases: Sequence[Any]) -> str:
    """TOML; JSON where a setting is changed to nothing, which TOML cannot say."""
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


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]
