"""`python -m trainer show PRESET`: a preset's effective configuration as TOML."""

from __future__ import annotations

import argparse
import sys

from trainer.presets.preset import load_preset, to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="a name that `presets` lists")


def main(args: argparse.Namespace) -> int:
    try:
        preset = load_preset(args.preset)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    about = [preset.title, preset.summary, f"Source: {preset.source}", *preset.notes]
    about.append("Add model.path, data.rows and reward.recipe to run it.")
    sys.stdout.write("".join(f"# {line}\n" for line in about))
    sys.stdout.write("\n" + to_toml(preset.effective()))
    return 0
