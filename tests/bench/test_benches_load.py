"""What is measured by hand, and seldom, still finds all that it uses."""

from __future__ import annotations

import importlib
from pathlib import Path

FOLDER = Path(__file__).parent
BENCHES = [
    path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("test_")
]


def test_each_bench_finds_what_it_uses() -> None:
    for name in BENCHES:
        importlib.import_module(f"tests.bench.{name}")
