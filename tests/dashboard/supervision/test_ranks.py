"""What each process of a run uses: stored in one row, shown as a table."""

import pytest
from django.urls import reverse

from dashboard.runs.models import Run, RunEvent
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.models import RunRanks
from dashboard.supervision.ranks import KEPT_STEPS, LEAST_STEPS, read_ranks
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.machines import make_rank
from tests.page_client import PageClient
from trainer.events import RanksMeasured


def measure(log: LogBuilder, step: int, *work: float) -> LogBuilder:
    log.add(
        RanksMeasured, step=step, ranks=[make_rank(n, s) for n, s in enumerate(work)]
    )
    return log.stepped(step, num_groups=0)


def table(client: PageClient, run: Run) -> str:
    return client.read(reverse("run_ranks", args=["alpha", run.id]))


def test_a_run_keeps_the_newest_values_and_the_work_of_some_steps(claim, run):
    log = LogBuilder().started()
    for step in range(1, KEPT_STEPS + 11):
        measure(log, step, float(step), 2.0)

    ingest(claim, log.events[:20])
    ingest(claim, log.events)

    row = RunRanks.objects.get()
    assert (row.run_id, row.attempt, row.step) == (run.id, 1, KEPT_STEPS + 10)
    assert row.work == [[float(s), 2.0] for s in range(11, KEPT_STEPS + 11)]
    assert row.ranks[0] == make_rank(0, KEPT_STEPS + 10)
    bodies = RunEvent.objects.filter(type="ranks_measured").values_list("body")
    assert {str(body) for (body,) in bodies} == {"{}"}


def test_another_attempt_begins_with_its_own_ranks(claim, run):
    ingest(claim, measure(LogBuilder().started(), 1, 9.0, 9.0).events)
    Run.objects.filter(id=run.id).update(state="queued")
    again = claim_run(run.id, "worker-2")
    assert again is not None

    ingest(again, measure(LogBuilder(attempt=2).started(), 2, 1.0, 1.0, 1.0).events)

    row = RunRanks.objects.get()
    assert (row.attempt, row.work) == (2, [[1.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("work", "slow"),
    [
        ([1.0, 1.1, 1.0, 1.5], [3]),
        ([1.0, 1.3], [1]),  # the slow one of two
        ([1.0, 1.1], []),
        ([1.0, 2.0, 3.0, 1.0, 1.0], [2, 1]),
    ],
)
def test_a_rank_whose_work_takes_longer_is_slow(work, slow, claim, run):
    log = LogBuilder().started()
    for step in range(1, LEAST_STEPS):
        measure(log, step, *work)
    ingest(claim, log.events)
    early = read_ranks(run)
    assert early is not None
    assert not early.slow

    # One that is slow for a single step, as one that writes a checkpoint, is not.
    measure(log, LEAST_STEPS, *[9.0, *work[1:]])
    ingest(claim, log.events)

    ranks = read_ranks(run)
    assert ranks is not None
    assert [row.rank for row in ranks.slow] == slow


def test_the_table_has_a_row_for_each_rank(claim, run, alice_client):
    assert "data-rank=" not in table(alice_client, run)
    log = LogBuilder().started()
    for step in range(1, 7):
        measure(log, step, 1.0, 1.0, 1.0, 1.4)
    ingest(claim, log.events)

    shown = table(alice_client, run)

    assert [f'data-rank="{n}"' in shown for n in range(5)] == [True] * 4 + [False]
    assert 'data-slow-ranks="3"' in shown
    assert shown.count("node-1") == 3  # two rows and the sentence
    assert "75%" in shown
    samples = reverse("run_system_samples", args=["alpha", run.id])
    assert alice_client.get(samples).json()["ranks_step"] == "1-6"
