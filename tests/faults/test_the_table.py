"""The table of faults is whole, and names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.table_of_tests import assert_names_tests, read_rows

FAULT, DONE, HOLDS, TESTS, SECONDS = range(5)
ROWS = read_rows(Path(__file__).parent / "README.md", first_cell=r"F\d+")


def test_all_twenty_faults_are_there() -> None:
    assert [row[FAULT] for row in ROWS] == [f"F{n}" for n in range(1, 21)]
    assert all(len(row) == 5 and all(row[:SECONDS]) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[FAULT]))
def test_each_fault_is_shown_by_tests(row: list[str]) -> None:
    assert_names_tests(row[TESTS])
    assert re.fullmatch(r"|\d+", row[SECONDS])
