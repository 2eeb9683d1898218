"""`python -m trainer show PRESET`: a preset's effective configuration as TOML."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from trainer.presets.preset import OPEN, PARTS, Preset, Tree, load_preset

# What TOML, which has no null, calls the absence of a setting that has a default.
_ABSENT = "none"
_PLACEHOLDERS = {
    "model.path": "a folder with a saved model, or a hub id",
    "data.rows": "a JSONL file of prompts",
}


def write_preset(
    preset: Preset,
    *,
    scaled: bool = False,
    model: str | None = None,
    rows: str | None = None,
) -> str:
    """The effective configuration; `trainer run` takes it once model and rows are set.

    A setting that differs from Cohort's default has the default behind it.
    """
    tree = preset.effective(scaled=scaled)
    given = {"model.path": model, "data.rows": rows}
    lines = [_line("", "seed", preset.seed, default=0), ""]
    for part in PARTS:
        lines.append(f"[{part}]")
        if part in OPEN:
            lines.append(_open_line(f"{part}.{OPEN[part]}", given))
        lines += _lines(part, tree)
        lines.append("")
    lines += _recipes(tree["reward"])
    return "\n".join(lines).rstrip("\n") + "\n"


def _open_line(path: str, given: dict[str, str | None]) -> str:
    name, value = path.partition(".")[2], given[path]
    if value is None:
        return f'# {name} = "…"  # to be set: {_PLACEHOLDERS[path]}'
    return f"{name} = {_value(value)}"


def _lines(part: str, tree: Tree) -> list[str]:
    fields = PARTS[part].model_fields
    return [
        _line(part, name, value, default=fields[name].default)
        for name, value in tree[part].items()
        if name not in ("recipe", "step_recipe")
    ]


def _line(part: str, name: str, value: Any, *, default: Any) -> str:
    if value is None and default is None:
        return f"# {name} is not set"
    shown = f"{name} = {_value(_ABSENT if value is None else value)}"
    if value == default or default is PydanticUndefined:
        return shown
    return f"{shown}  # Cohort: {'not set' if default is None else _value(default)}"


def _recipes(reward: dict[str, Any]) -> list[str]:
    """A rule is a table of its own, which must come behind the part's plain values."""
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
    """A plain value; TOML's strings, numbers and lists are JSON's."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_value(v)}" for key, v in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="a name that `presets` lists")
    parser.add_argument(
        "--scaled", action="store_true", help="the form for the starter on a laptop"
    )
    parser.add_argument("--model", metavar="PATH", help="put in as model.path")
    parser.add_argument("--rows", metavar="FILE", help="put in as data.rows")


def main(args: argparse.Namespace) -> int:
    try:
        preset = load_preset(args.preset)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    about = [preset.title, preset.summary, f"Source: {preset.source}", *preset.notes]
    if args.scaled:
        about.append("Scaled to the starter; the notes speak of the real thing.")
    about.append("Behind a setting that differs from Cohort's default stands the one.")
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
    """A folder, wherever the configuration will be put; a hub id stays as it is."""
    path = Path(model)
    return str(path.absolute()) if path.is_dir() else model
