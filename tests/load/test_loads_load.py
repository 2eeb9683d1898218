"""What is measured by hand, and seldom, still finds all that it uses."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LOADS = [path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_")]


@pytest.mark.parametrize("name", sorted(LOADS))
def test_a_load_finds_what_it_uses(name: str) -> None:
    importlib.import_module(f"tests.load.{name}")
