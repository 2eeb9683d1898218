"""What is measured in another process."""

from __future__ import annotations

import os

import pytest

from tests.bench.apart import READY, Apart, Give, call_apart, peak_bytes, take_turns
from tests.bench.work import Lengths, Step

MEBIBYTE = 2**20


def give_steps(give: Give, *, rate: int) -> None:
    give(READY)
    print("what a trainer prints")  # noqa: T201
    while True:
        give(Step(seconds=1.0, lengths=Lengths(prompts=(1,), groups=((rate,),))))


def fail(give: Give) -> None:
    give(READY)
    raise ValueError("no model here")


def die(give: Give) -> None:
    give(READY)
    os._exit(9)


def hold(num_bytes: int) -> int:
    held = b"x" * num_bytes
    assert len(held) == num_bytes
    return peak_bytes("cpu")


def test_two_processes_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    with Apart(give_steps, rate=3) as one, Apart(give_steps, rate=5) as other:
        for side in (one, other):
            side.wait_until_ready()

        taken = take_turns([one, other], name="both", num_steps=2, warmup=1)

    assert [[step.rate for step in steps] for steps in taken] == [[3, 3], [5, 5]]
    assert "what a trainer prints" not in capfd.readouterr().out


def test_turns_end_at_the_deadline_but_for_a_first_one() -> None:
    with Apart(give_steps, rate=3) as side:
        side.wait_until_ready()

        (taken,) = take_turns([side], name="one", num_steps=5, warmup=2, deadline=0.0)

    assert len(taken) == 1


def test_a_process_that_fails_says_why() -> None:
    with Apart(fail) as side:
        side.wait_until_ready()

        with pytest.raises(RuntimeError, match="fail failed: ValueError: no model"):
            side.step()


def test_a_process_that_is_ended_says_how() -> None:
    with Apart(die) as side:
        side.wait_until_ready()

        with pytest.raises(RuntimeError, match="die ended with exit code 9"):
            side.step()


def test_the_peak_of_a_process_is_its_own() -> None:
    held = b"x" * (300 * MEBIBYTE)  # resident in this process, which starts the others

    small = call_apart(hold, 1)
    large = call_apart(hold, 64 * MEBIBYTE)

    assert small < len(held)
    assert large - small == pytest.approx(64 * MEBIBYTE, rel=0.3)
