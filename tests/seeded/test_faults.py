"""Each line of a seeded fault occurs once in its file."""

from pathlib import Path

import pytest

from tests.seeded.faults import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.id for fault in FAULTS])
def test_each_seeded_line_occurs_once(fault):
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.line) == 1
