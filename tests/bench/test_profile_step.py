"""Each operation is counted once, and what is left of the wall time is Python's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.bench.profile_step import KINDS, PYTHON, REST, shares


@dataclass
class Operation:
    key: str
    self_cpu_time_total: float  # microseconds


def test_operations_are_added_up_by_what_they_do() -> None:
    products, attention, copies = KINDS
    events = [
        Operation("aten::mm", 200_000),
        Operation("aten::addmm_", 50_000),
        Operation("aten::_scaled_dot_product_flash_attention_for_cpu", 100_000),
        Operation("aten::index_select", 30_000),
        Operation("aten::mul", 60_000),
        Operation("_RMSNormBackward", 10_000),
        Operation("ProfilerStep*", 900_000),  # holds the others
    ]

    found = shares(events, 0.5)

    assert found == pytest.approx(
        {products: 0.25, attention: 0.1, copies: 0.03, REST: 0.07, PYTHON: 0.05}
    )


def test_a_profiler_that_slows_what_it_sees_leaves_nothing_less_than_none() -> None:
    assert shares([Operation("aten::mm", 2_000_000)], 1.5)[PYTHON] == 0
