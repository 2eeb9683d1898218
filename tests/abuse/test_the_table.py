"""The table of abuse cases is whole, and names tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (Path(__file__).parent / "README.md").read_text("utf-8").split("\n")
    if re.match(r"\| \d", line)
]
NAMED = re.compile(r"`([\w/.]+\.py)::(\w+)`")


@cache
def _names_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_all_thirty_five_cases_are_there() -> None:
    assert [int(row[0].strip("| ")) for row in ROWS] == list(range(1, 36))
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"case {row[0].strip('| ')}")
def test_each_case_is_shown_by_tests(row: list[str]) -> None:
    named = NAMED.findall(row[3])

    assert named, row
    assert "**Open**" not in "".join(row)
    assert row[3].count("`") == 2 * len(named), "a name is written otherwise"
    for path, name in named:
        assert name.startswith("test_")
        assert name in _names_in(path), f"{path} has no {name}"
