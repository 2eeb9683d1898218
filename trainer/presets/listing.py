"""`python -m trainer presets`: the presets there are."""

from __future__ import annotations

import argparse
import sys

from trainer.presets.preset import load_preset, preset_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def main(args: argparse.Namespace) -> int:
    for name in preset_names():
        preset = load_preset(name)
        sys.stdout.write(f"{name:<21} {preset.title}: {preset.summary}\n")
    return 0
