"""Whatever happens to runs, in whatever order: one writer, one history, and an end.

And that whoever breaks one of the guards is found out: `make soak` breaks each of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.dashboard.training.factories import Launcher
from tests.dashboard.training.machine import ledger
from tests.dashboard.training.machine.actors import Cast
from tests.dashboard.training.machine.clock import Clock
from tests.dashboard.training.machine.defects import DEFECTS
from tests.dashboard.training.machine.machine import Machine
from tests.dashboard.training.machine.supervisors import Broker, replace_surroundings

pytestmark = [
    pytest.mark.slow(minutes=1),
    pytest.mark.django_db(transaction=True),
    # Of a process that was killed nobody closes what it read from.
    pytest.mark.filterwarnings(
        "ignore:.*ServerSideCursor.* still open:ResourceWarning"
    ),
]


@pytest.fixture
def machine(
    launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Machine]]:
    cast, clock, broker = Cast(), Clock(), Broker()
    replace_surroundings(monkeypatch, clock, broker)
    with ledger.kept():
        surroundings = (launch, cast, clock, broker)
        yield type("Runs", (Machine,), {"surroundings": surroundings, "traces": []})
        cast.close()


def work(machine: type[Machine], number: int, *, max_examples: int) -> None:
    """`number` decides all that happens."""
    try:
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=40,
                database=None,
                deadline=None,
                report_multiple_bugs=False,
                # To shrink a failure takes minutes of SQL.
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    except BaseException as error:
        error.add_note(
            f"Found by course {len(machine.traces)} at the latest. The same courses "
            f"happen again by: --hypothesis-seed={number}"
        )
        raise


@pytest.fixture
def number(request: pytest.FixtureRequest) -> int:
    """The same each time, so that a change is judged by itself; any while it soaks."""
    if given := request.config.getoption("--hypothesis-seed"):
        return int(given)
    is_soak = request.config.getoption("--soak")
    return random.SystemRandom().randrange(2**32) if is_soak else 0


def test_each_run_has_one_writer_one_history_and_an_end(
    machine: type[Machine], number: int, request: pytest.FixtureRequest
) -> None:
    is_soak = request.config.getoption("--soak")

    work(machine, number, max_examples=3_000 if is_soak else 8)


@pytest.mark.soak  # a busy machine may cut a course elsewhere
def test_courses_can_be_repeated(machine: type[Machine], number: int) -> None:
    for _ in range(2):
        work(machine, number, max_examples=2)

    first, second = machine.traces[:2], machine.traces[2:]
    assert first == second
    assert any(len(trace) > 30 for trace in first)


@pytest.mark.soak  # each takes minutes
@pytest.mark.parametrize("name", DEFECTS)
def test_a_guard_that_is_broken_is_found(
    name: str,
    machine: type[Machine],
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    DEFECTS[name].put_in(monkeypatch)

    with pytest.raises((AssertionError, ExceptionGroup)):
        work(machine, number, max_examples=500)
