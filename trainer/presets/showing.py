"""`python -m trainer show PRESET`: a preset's effective configuration as TOML."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.presets.preset import load_preset
from trainer.presets.toml import write_preset


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
