"""Presets: loading, conversion to a run configuration, and output as TOML.

A preset is NAME.toml; a published recipe is NAME.json. `main` is `python -m trainer
show PRESET`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticUndefined

from trainer.config import RunConfig, parts_of
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

FOLDER = Path(__file__).parent

PARTS = parts_of(RunConfig)
# Settings that every run must give and no preset can know.
OPEN = {"model": "path", "data": "rows"}
# The task: a scaled form has another, so it takes nothing over from the real one's.
_TASK = ("data", "reward")

Tree = dict[str, dict[str, Any]]


class Preset(BaseModel):
    """A published system's settings, and where they were read.

    `parts` is the real thing; `scaled` is what differs in a form of it that the
    starter's model learns on a laptop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    kind: Literal["method", "system"] = "system"  # an algorithm, or a project's whole
    summary: str
    source: str
    notes: tuple[str, ...] = ()
    seed: int = 0
    parts: Tree
    scaled: Tree

    def tree(self, *, scaled: bool = False) -> Tree:
        """Return what the preset sets, part by part."""
        if not scaled:
            return self.parts
        merged = {name: dict(values) for name, values in self.parts.items()}
        for name, values in self.scaled.items():
            merged[name] = values if name in _TASK else merged.get(name, {}) | values
        return merged

    def effective(self, *, scaled: bool = False) -> Tree:
        """Return each part with its defaults filled in; model.path and data.rows are
        left.
        """
        tree = self.tree(scaled=scaled)
        return {name: _filled(name, tree.get(name, {})) for name in PARTS}

    def config(
        self,
        *,
        model: str,
        rows: str,
        scaled: bool = False,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> RunConfig:
        """Give the run of a model on rows; ValueError where `changes` contradict it."""
        tree = {part: dict(v) for part, v in self.tree(scaled=scaled).items()}
        tree.setdefault("model", {})["path"] = model
        tree.setdefault("data", {})["rows"] = rows
        for part, values in (changes or {}).items():
            tree[part] = tree.get(part, {}) | dict(values)
        return RunConfig.model_validate({"seed": self.seed, **tree})

    @property
    def recipe(self) -> Recipe:
        """The reward of the real thing, graded strictly."""
        return Recipe.model_validate(self.parts["reward"]["recipe"])


def _filled(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a part's values with its defaults; one that is left open is not among
    them.
    """
    left_open = OPEN.get(name)
    placeholder = {left_open: "any"} if left_open else {}
    part = PARTS[name].model_validate({**placeholder, **values})
    return part.model_dump(exclude=set(placeholder))


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read a preset; ValueError names those there are."""
    if name not in preset_names():
        raise ValueError(
            f'Unknown preset "{name}". Choose one of: {", ".join(preset_names())}.'
        )
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    about, scaled = tree.pop("preset"), tree.pop("scaled")
    seed = tree.pop("seed", 0)
    for parts in (tree, scaled):
        unknown = set(parts) - set(PARTS)
        assert not unknown, f"{name}.toml sets {unknown}, which a preset cannot set"
        reward = parts["reward"]  # where a published recipe replaces its name
        published = reward.pop("published", None)
        if published is not None:
            reward["recipe"] = load_published(published).model_dump()
    return Preset(name=name, **about, seed=seed, parts=tree, scaled=scaled)


def published_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_published(name: str) -> Recipe:
    """Return the recipe, with strict grading; ValueError for an unknown name."""
    if name not in published_names():
        raise ValueError(
            f'Unknown preset "{name}". Choose one of: {", ".join(published_names())}.'
        )
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    return Recipe.model_validate_json(text)


def as_published(recipe: Recipe) -> Recipe:
    """Return the recipe with each rule in its as_published mode, holes included.

    ValueError when no rule has such a mode, since nothing would change.
    """
    tree = recipe.model_dump()
    has_mode = [
        rule
        for rule in tree["rules"]
        if "mode" in RULES[rule["kind"]].params_model.model_fields
    ]
    if not has_mode:
        kinds = ", ".join(rule.kind for rule in recipe.rules)
        raise ValueError(
            f"No rule of this reward has an as_published mode (its rules: {kinds}). "
            "Remove --as-published."
        )
    for rule in has_mode:
        rule["params"]["mode"] = "as_published"
    return Recipe.model_validate(tree)


# What TOML, which has no null, calls the absence of a setting that has a default.
_ABSENT = "none"
_PLACEHOLDERS = {
    "model.path": "a model folder, or a Hugging Face model ID",
    "data.rows": "a JSONL file of prompts",
}


def write_preset(
    preset: Preset,
    *,
    scaled: bool = False,
    model: str | None = None,
    rows: str | None = None,
) -> str:
    """Return the effective configuration; `trainer run` takes it once model and rows
    are set.

    A setting that differs from Cohort's default has the default behind it.
    """
    tree = preset.effective(scaled=scaled)
    values = {"model.path": model, "data.rows": rows}
    lines = [_line("", "seed", preset.seed, default=0), ""]
    for part in PARTS:
        lines.append(f"[{part}]")
        if part in OPEN:
            lines.append(_open_line(f"{part}.{OPEN[part]}", values))
        fields = PARTS[part].model_fields
        lines += [
            _line(part, name, value, default=fields[name].default)
            for name, value in tree[part].items()
            if name not in ("recipe", "step_recipe")
        ]
        lines.append("")
    lines += _recipes(tree["reward"])
    return "\n".join(lines).rstrip("\n") + "\n"


def _open_line(path: str, values: dict[str, str | None]) -> str:
    name, value = path.partition(".")[2], values[path]
    if value is None:
        return f'# {name} = "…"  # to be set: {_PLACEHOLDERS[path]}'
    return f"{name} = {_value(value)}"


def _line(part: str, name: str, value: Any, *, default: Any) -> str:
    if value is None and default is None:
        return f"# {name} is not set"
    shown = f"{name} = {_value(_ABSENT if value is None else value)}"
    if value == default or default is PydanticUndefined:
        return shown
    return f"{shown}  # Cohort: {'not set' if default is None else _value(default)}"


def _recipes(reward: dict[str, Any]) -> list[str]:
    """Write rules last: each is a table of its own, behind the part's settings."""
    lines = []
    for name in ("recipe", "step_recipe"):
        whole = {k: v for k, v in (reward[name] or {}).items() if k != "rules"}
        if whole:
            lines += [f"[reward.{name}]", *_pairs(whole), ""]
        for rule in (reward[name] or {}).get("rules", ()):
            table = f"reward.{name}.rules"
            lines.append(f"[[{table}]]")
            lines += _pairs({key: rule[key] for key in rule if key != "params"})
            lines += ["", f"[{table}.params]"]
            lines += [
                f"{key} = {_value(value)}"
                for key, value in rule["params"].items()
                if value is not None
            ]
            lines.append("")
    return lines


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    """Return a plain value; TOML's strings, numbers and lists are JSON's."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_value(v)}" for key, v in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="name of a preset, as `presets` lists it")
    parser.add_argument(
        "--scaled",
        action="store_true",
        help=("the small version for the starter on a laptop"),
    )
    parser.add_argument("--model", metavar="PATH", help="model.path in the output")
    parser.add_argument("--rows", metavar="FILE", help="data.rows in the output")


def main(args: argparse.Namespace) -> int:
    try:
        preset = load_preset(args.preset)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    about = [preset.title, preset.summary, f"Source: {preset.source}", *preset.notes]
    if args.scaled:
        about.append("Scaled to the starter; the notes describe the original.")
    about.append("Comments show Cohort's default where a setting differs from it.")
    if not (args.model and args.rows):
        about.append("To run it, set model.path and data.rows below.")
    sys.stdout.write("".join(f"# {line}\n" for line in about) + "\n")
    sys.stdout.write(
        write_preset(
            preset,
            scaled=args.scaled,
            model=args.model and _absolute(args.model),
            rows=args.rows and str(Path(args.rows).absolute()),
        )
    )
    return 0


def _absolute(model: str) -> str:
    """Get a folder, wherever the configuration will be put; a hub id stays as it is."""
    path = Path(model)
    return str(path.absolute()) if path.is_dir() else model
