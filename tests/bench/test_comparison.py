"""What a comparison's tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import growth
from tests.bench.comparison import (
    Comparison,
    least_seconds,
    limit_rows,
    rates_line,
    step_row,
)
from tests.bench.machine import table
from tests.bench.random_models import config_of
from tests.bench.rates import MachineRates
from tests.bench.work import Lengths, Step, Work

MACHINE = MachineRates(matrix=4e9, read=2e9, training=2e9, decoding=1e9, reading=1e9)
LENGTHS = Lengths(prompts=(64,), groups=((8, 8),))


@pytest.fixture
def work(tmp_path: Path) -> Work:
    config_of("tiny").save_pretrained(tmp_path)
    return Work(
        model=tmp_path,
        rows=tmp_path / "rows.jsonl",
        num_prompts=1,
        group_size=2,
        max_new_tokens=8,
        beta=0.5,
    )


def step(seconds: float, *, peak_bytes: int, **phases: float) -> Step:
    return Step(seconds=seconds, lengths=LENGTHS, phases=phases, peak_bytes=peak_bytes)


def compared(work: Work, *, with_trl: bool) -> Comparison:
    ours = [
        step(seconds, peak_bytes=2**21, generate=0.5, logprobs=0.125, update=0.25)
        for seconds in (1.0, 2.0, 4.0)
    ]
    theirs = [step(8.0, peak_bytes=2**22, generate=4.0) for _ in ours]
    return Comparison(
        work=work,
        ours=ours,
        theirs=theirs if with_trl else [],
        micro_batches=4 if with_trl else 0,
        machine=MACHINE,
    )


def test_a_row_holds_medians_ranges_memory_and_phases(work: Work) -> None:
    assert step_row(compared(work, with_trl=True)) == [
        "1 × 2, 8 new, β 0.5",
        "2 (2–2) (4 micro-batches)",
        "8 (4–16)",
        "4.00 (2.00–8.00)",
        "4",
        "2",
        "0.50",
        "generate 0.50, logprobs 0.12, update 0.25",
        "generate 4.00",
    ]


def test_without_trl_its_columns_are_empty(work: Work) -> None:
    row = step_row(compared(work, with_trl=False))

    assert [row[place] for place in (1, 3, 4, 6, 8)] == ["–"] * 5


def test_each_part_stands_beside_the_least_it_can_take(work: Work) -> None:
    rows = limit_rows(compared(work, with_trl=True))

    limit = least_seconds(work, LENGTHS, decoding=MACHINE.limit, training=MACHINE.limit)
    assert [row[1].split(" (")[0] for row in rows] == [
        "Cohort: sampling",
        "Cohort: reference",
        "Cohort: update",
        "Cohort: whole step",
        "TRL: sampling",
        "TRL: whole step",
    ]
    assert rows[2][2:5] == [
        "0.250",
        f"{limit.update:.3f}",
        f"{limit.update / 0.25:.0%}",
    ]
    assert rows[3][2:5] == ["2.000", f"{limit.step:.3f}", f"{limit.step / 2:.0%}"]
    assert limit.update == pytest.approx(3 * limit.logprobs)


def test_only_a_step_with_a_reference_has_its_time(work: Work) -> None:
    bare = Work(**(vars(work) | {"beta": 0.0}))

    found = least_seconds(bare, LENGTHS, decoding=MACHINE.limit, training=MACHINE.limit)

    assert found.logprobs == 0.0


def test_rates_are_told_in_units_that_can_be_read() -> None:
    fast = MachineRates(
        matrix=7.9e14, read=4.3e12, training=6e14, decoding=1e13, reading=4e12
    )

    assert "790.0 TFLOP/s (large ones)" in rates_line(fast)
    assert "2.0 GFLOP/s (training this model)" in rates_line(MACHINE)


def test_growth_compares_a_token_with_the_first_sizes_own_turn(work: Work) -> None:
    small = [
        step(seconds, peak_bytes=2**20, generate=1.0, update=0.5)
        for seconds in (1.0, 2.0)
    ]
    large = [step(2.2, peak_bytes=2**21, generate=1.0, update=0.5) for _ in small]

    rows = growth.rows([work, work], [small, large])

    assert rows[0][-2:] == ["1.00 (1.00–1.00)", "1"]
    assert rows[1][-2:] == ["1.65 (1.10–2.20)", "2"]
    assert rows[1][2] == "137500.0 (137500.0–137500.0)"


def test_a_table_is_markdown() -> None:
    assert (
        table(("what", "n"), [["a", "1"]]) == "| what | n |\n| --- | --: |\n| a | 1 |\n"
    )
