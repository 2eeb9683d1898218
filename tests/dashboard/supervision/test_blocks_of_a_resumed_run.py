"""A search covers the current history, without superseded steps."""

from dashboard.completions.models import CompletionBlock
from dashboard.completions.search import indexing
from dashboard.completions.search.blocks import read_blocks
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim, claim_run
from dashboard.supervision.takeover import take_over
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder


def resume(run: Run) -> Claim:
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    claim = claim_run(run.id, "worker-2")
    assert claim is not None
    directory = run_directory(run.id)
    supervisor_log = SupervisorLog(directory.attempt(2).supervisor_log, about="test")
    take_over(claim, directory, supervisor_log=supervisor_log, keep_alive=lambda: None)
    return claim


def found(run: Run) -> dict[int, int]:
    """How many completions of each step."""
    return {
        int(step): int(num)
        for block in read_blocks(run).blocks
        for step, num in block.steps
    }


def test_a_resume_deletes_the_blocks_past_its_checkpoint(run, claim, monkeypatch):
    monkeypatch.setattr(indexing, "FEWEST", 1)
    monkeypatch.setattr(indexing, "MOST", 1)  # a block a step
    directory = run_directory(run.id)
    log = LogBuilder().started().stepped(1).saved(1).stepped(2).stepped(3)
    log.write(directory.attempt(1).events)
    ingest(claim, log.events)
    save(directory, 1)
    of_a_step = found(run)[1]
    assert make_blocks(run) == 3

    second = resume(run)
    run.refresh_from_db()
    kept = list(CompletionBlock.objects.values_list("first_step", flat=True))
    after_resume = found(run)
    ingest(second, LogBuilder(attempt=2).stepped(2, num_groups=4).events)
    fresh = found(run)
    make_blocks(run)

    assert kept == [1]
    assert after_resume == {1: of_a_step}
    assert fresh == found(run) == {1: of_a_step, 2: 2 * of_a_step}


def test_a_step_in_progress_is_found_before_it_is_over(run, claim):
    log = LogBuilder().started().stepped(1)

    ingest(claim, log.events[:-1])

    assert list(found(run)) == [1]
