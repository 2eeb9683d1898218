"""Markdown tables whose rows name the tests that show them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.compile(r"`([\w/.]+\.py)::(\w+)`")


def read_rows(table: Path, *, first_cell: str) -> list[list[str]]:
    """The cells of each row that begins so (a pattern)."""
    return [
        [cell.strip() for cell in line.strip().removeprefix("|").split("|")[:-1]]
        for line in table.read_text("utf-8").split("\n")
        if re.match(rf"\| {first_cell} \|", line)
    ]


def assert_names_tests(cell: str) -> None:
    """The cell holds nothing but `path/below/tests.py::test_name`, each a test."""
    named = NAMED.findall(cell)
    assert named, "no test is named"
    assert cell.count("`") == 2 * len(named), "a name is written otherwise"
    for path, name in named:
        assert name.startswith("test_")
        assert name in _names_in(path), f"{path} has no {name}"


@cache
def _names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
