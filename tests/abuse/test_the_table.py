"""The table of abuse cases is whole, and names tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.table_of_tests import assert_names_tests, read_rows

ROWS = read_rows(Path(__file__).parent / "README.md", first_cell=r"\d+")


def test_all_thirty_five_cases_are_there() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 36))
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"case {row[0]}")
def test_each_case_is_shown_by_tests(row: list[str]) -> None:
    assert "**Open**" not in "".join(row)
    assert_names_tests(row[3])
