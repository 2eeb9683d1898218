"""What is typed on the page of what may change after a launch."""

from __future__ import annotations

import pytest

from dashboard.runs.change_form import (
    next_step,
    propose_steps,
    read_intervals,
    read_steps,
)
from dashboard.runs.models import Checkpoint, Run, RunState

KEEP, EVERY = "checkpoint.keep_last", "checkpoint.every_steps"


def make(state: RunState) -> Run:
    """Of 30 steps, at the 20th, with a checkpoint of the 10th."""
    run = Run(state=state, last_step=20, num_steps=30)
    run.newest_checkpoint = Checkpoint(step=10)
    return run


@pytest.mark.parametrize(
    ("state", "first", "lowest"),
    [(RunState.RUNNING, 21, 31), (RunState.STOPPED, 11, 11)],
)
def test_a_run_is_extended_from_where_it_can_go_on(
    state: RunState, first: int, lowest: int
) -> None:
    run = make(state)

    assert next_step(run) == first
    assert propose_steps(f" {lowest} ", run) == lowest
    with pytest.raises(ValueError, match=f"from {lowest} to 10,000,000; got '"):
        propose_steps(str(lowest - 1), run)


def test_a_last_step_may_have_commas_or_be_left_out() -> None:
    run = make(RunState.RUNNING)

    assert propose_steps("1,000", run) == 1_000
    assert propose_steps(" ", run) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "\u00b2", "9" * 9])
def test_what_is_no_whole_number_is_refused_as_it_was_typed(text: str) -> None:
    with pytest.raises(ValueError, match="The last step must be a whole number; got"):
        read_steps(text)


def test_only_what_was_changed_on_the_page_is_read() -> None:
    posted = {KEEP: " 7 ", f"was.{KEEP}": "2", EVERY: "99", f"was.{EVERY}": "99"}

    assert read_intervals(posted) == {KEEP: 7}


def test_no_other_setting_is_read() -> None:
    assert read_intervals({"optim.num_steps": "7", "loss.kl_coef": "1"}) == {}
