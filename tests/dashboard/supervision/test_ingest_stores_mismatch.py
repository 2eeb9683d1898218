import math

import numpy as np
import pytest

from dashboard.completions import mismatch as reading
from dashboard.completions.mismatch import read_mismatch, read_newest
from dashboard.completions.models import Group, MismatchStep
from dashboard.runs.models import Run, RunEvent
from dashboard.runs.queries import run_directory
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import take_over
from tests.dashboard.completions.mismatches import mismatch
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder, group
from trainer.events import GroupScored, MismatchMeasured, StepFinished

GAPS = [[0.1, -0.2, 0.3], [0.0, 0.5], [-0.25], [0.04, 0.04]]


def with_mismatch(log: LogBuilder, step: int, **fields) -> LogBuilder:
    """A step of two groups, with the gap between sampler and trainer."""
    for index in (4, 7):
        log.add(GroupScored, step=step, age=1, **group(index))
    reported = {
        "advantages": [-1.0, 1.0, 0.5, -0.5],
        "prompts": [4, 7],
        "sizes": [2, 2],
    }
    log.add(MismatchMeasured, step=step, **mismatch(GAPS, **reported, age=1) | fields)
    return log.add(StepFinished, step=step, metrics={"loss": 1.0})


def run_of(claim) -> Run:
    return Run.objects.get(id=claim.run_id)


def test_it_is_read_back_with_its_completions(claim, django_assert_num_queries):
    ingest(claim, with_mismatch(LogBuilder().started(), 1).events)
    run = run_of(claim)

    with django_assert_num_queries(1):
        one = read_newest(run, 1)

    completions = one.completions
    assert completions["num_tokens"].tolist() == [3, 2, 1, 2]
    assert completions["sum"] == pytest.approx([0.2, 0.5, -0.25, 0.08])
    assert completions["absolute"] == pytest.approx([0.6, 0.5, 0.25, 0.08])
    assert completions["min"] == pytest.approx([-0.2, 0.0, -0.25, 0.04])
    assert completions["max"] == pytest.approx([0.3, 0.5, -0.25, 0.04])
    assert completions["k3"][1] == pytest.approx(math.exp(0.5) - 1.5, rel=1e-3)
    assert completions["advantage"].tolist() == [-1.0, 1.0, 0.5, -0.5]
    assert one.places.tolist() == [[4, 0], [4, 1], [7, 0], [7, 1]]
    assert (one.against, one.incomparable) == (("old",), ("",))
    assert RunEvent.objects.get(type="mismatch_measured").body == {}
    assert set(Group.objects.values_list("age", flat=True)) == {1}


def test_bins_are_read_back_by_step(claim, django_assert_num_queries):
    log = LogBuilder().started()
    for step in (1, 2, 3):
        with_mismatch(log, step, age=step)
    ingest(claim, log.events)
    run = run_of(claim)

    with django_assert_num_queries(2):
        steps = read_mismatch(run)

    assert steps.steps.tolist() == [1, 2, 3]
    assert steps.ages.tolist() == [1.0, 2.0, 3.0]
    assert steps.positions["num_tokens"][:, :3].tolist() == [[4, 4, 0]] * 3
    assert steps.positions["largest"][0, :2] == pytest.approx([0.25, 0.5])
    assert steps.probabilities["num_tokens"][0, 5] == 8  # μ is 0.5
    assert steps.gaps.sum(axis=1).tolist() == [8, 8, 8]
    assert steps.differences.sum(axis=2).tolist() == [[5, 0, 3]] * 3
    assert steps.step_of.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert read_newest(run, 2, last=2).steps.tolist() == [1, 2]
    assert read_newest(run, 1, last=0) is None


def test_of_many_steps_every_nth_and_the_last_are_read(claim, monkeypatch):
    monkeypatch.setattr(reading, "MAX_STEPS", 3)
    log = LogBuilder().started()
    for step in range(1, 8):
        with_mismatch(log, step)
    ingest(claim, log.events)

    steps = read_mismatch(run_of(claim))

    assert steps.steps.tolist() == [1, 4, 7]


def test_a_step_takes_little_room(claim):
    prompts, sizes = list(range(32)), [8] * 32
    reported = mismatch(
        [[0.1]] * 256, advantages=[1.0] * 256, prompts=prompts, sizes=sizes
    )
    log = LogBuilder().started().add(MismatchMeasured, step=1, **reported)
    ingest(claim, log.events)

    row = MismatchStep.objects.get()

    # 24 bytes a completion and 850 a step, by the plan
    num_bytes = len(row.groups) + len(row.completions) + len(row.bins)
    assert num_bytes < (24 * 256 + 850) * 1.2


def test_what_a_trainer_does_not_tell_is_missing(claim):
    event = mismatch([[0.1], [0.2]])
    event["sums"]["sum"][1] = 1e300  # no float32
    log = LogBuilder().started().add(MismatchMeasured, step=1, **event)
    ingest(claim, log.add(StepFinished, step=1, metrics={}).events)

    one = read_newest(run_of(claim), 1)

    assert np.isnan(one.completions["advantage"]).all()
    assert np.isnan(one.completions["sum"]).tolist() == [False, True]
    assert one.places.tolist() == [[-1, -1], [-1, -1]]
    assert np.isnan(one.ages).all()
    assert one.differences.sum() == 0


def test_the_first_of_a_step_counts(claim):
    log = with_mismatch(LogBuilder().started(), 1)
    log.add(MismatchMeasured, step=1, **mismatch([[9.0]]))

    ingest(claim, log.events)

    assert len(read_newest(run_of(claim), 1).completions) == 4


def test_steps_behind_a_resume_are_superseded(claim):
    directory = run_directory(claim.run_id)
    log = LogBuilder().started()
    for step in (1, 2, 3):
        with_mismatch(log, step)
        if step == 2:
            log.saved(2)
    save(directory, 2)
    log.write(directory.attempt(1).events)
    ingest(claim, log.events)
    Run.objects.filter(id=claim.run_id).update(state="queued", lease_until=None)
    again = claim_run(claim.run_id, "worker-2")
    supervisor_log = SupervisorLog(directory.attempt(2).supervisor_log, about="test")

    take_over(again, directory, supervisor_log=supervisor_log, keep_alive=lambda: None)

    run = run_of(claim)
    assert read_mismatch(run).steps.tolist() == [1, 2]
    assert MismatchStep.objects.get(step=3).superseded_by == again.attempt
