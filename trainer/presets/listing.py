"""`python -m trainer presets`: the presets there are."""

from __future__ import annotations

import argparse
import sys

from trainer.presets.preset import load_preset, preset_names
from trainer.presets.table import comparison_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", action="store_true", help="compare them point by point, in Markdown"
    )


def main(args: argparse.Namespace) -> int:
    if args.table:
        sys.stdout.write(comparison_table())
        return 0
    for name in preset_names():
        preset = load_preset(name)
        sys.stdout.write(f"{name:<21} {preset.title}: {preset.summary}\n")
    return 0
