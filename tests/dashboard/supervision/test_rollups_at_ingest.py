from typing import Any

from dashboard.completions.models import StepRollup
from dashboard.completions.rewards import correct_if
from dashboard.completions.signals.rule_shares import read_rule_shares
from dashboard.completions.signals.signal_map import (
    read_distribution,
    read_map,
    read_step_timing,
)
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.rollups import fill_rollups
from dashboard.supervision.takeover import take_over
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import StepFinished

COLUMNS = (
    "step",
    "attempt",
    "groups",
    "reward_quantiles",
    "reward_histogram",
    "advantage_quantiles",
    "advantage_histogram",
    "rule_names",
    "rules",
    "anatomy",
    "passes",
    "superseded_by",
)


def stored(run: Run) -> list[tuple[Any, ...]]:
    rows = StepRollup.objects.filter(run=run).order_by("step", "attempt")
    # numpy would compare NaN with NaN; bytes do not.
    return [
        tuple(bytes(v) if isinstance(v, memoryview) else v for v in row)
        for row in rows.values_list(*COLUMNS)
    ]


def test_a_step_is_rolled_up_with_its_last_line(run, claim):
    log = LogBuilder().started().stepped(1, num_groups=3)

    ingest(claim, log.events[:-1])
    assert not stored(run)
    ingest(claim, log.events)

    answer = read_map(run, order="dataset")
    assert answer["num_groups"] == 3
    assert answer["steps"][0]["num_effective"] == 6
    (column,) = read_distribution(run, "reward")["columns"]
    assert (column["num"], column["quantiles"][::3]) == (6, [0.0, 0.5, 1.0])
    assert read_rule_shares(run)["variance"] == {"answer": [1.0], "format": [0.0]}


def test_lines_in_any_batches_make_the_same_rollups(run, claim):
    log = LogBuilder().started().stepped(1).stepped(2).saved(2).stepped(3, num_groups=5)
    ingest(claim, log.events)
    at_once = stored(run)
    StepRollup.objects.all().delete()
    run.steps.all().delete()
    run.groups.all().delete()
    run.events.all().delete()
    run.checkpoints.all().delete()

    for event in log.events:
        ingest(claim, [event])
    ingest(claim, log.events)

    assert len(at_once) == 3
    assert stored(run) == at_once


def test_times_are_kept_without_groups_too(run, claim):
    log = LogBuilder().started()
    metrics = {"time/generate": 2.0, "time/step": 3.0, "time/score": None}
    log.add(StepFinished, step=1, metrics=metrics)

    ingest(claim, log.events)

    assert read_step_timing(run)["seconds"]["generate"] == [2.0]
    assert read_step_timing(run)["seconds"]["step"] == [3.0]


def test_a_resume_supersedes_the_rollups_past_its_checkpoint(run, claim):
    directory = run_directory(run.id)
    log = LogBuilder().started().stepped(1).saved(1).stepped(2).stepped(3)
    log.write(directory.attempt(1).events)
    ingest(claim, log.events)
    save(directory, 1)
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    second = claim_run(run.id, "worker-2")
    assert second is not None
    supervisor_log = SupervisorLog(directory.attempt(2).supervisor_log, about="test")
    take_over(second, directory, supervisor_log=supervisor_log, keep_alive=lambda: None)

    ingest(second, LogBuilder(attempt=2).stepped(2, num_groups=4).events)

    rows = [(row[0], row[1], row[-1]) for row in stored(run)]
    assert rows == [(1, 1, None), (2, 1, 2), (2, 2, None), (3, 1, 2)]
    columns = read_map(run, order="dataset")["steps"]
    assert [sum(c["signals"].values()) for c in columns] == [2, 4]


def test_backfilled_rollups_equal_those_of_ingest(run, claim):
    log = LogBuilder().started().stepped(1).stepped(2).stepped(3, num_groups=3)
    log.add(StepFinished, step=4, metrics={"time/generate": 2.0, "time/step": 3.0})
    ingest(claim, log.events)
    run.refresh_from_db()
    wanted = stored(run)
    StepRollup.objects.exclude(step=2).delete()

    assert fill_rollups(run) == 3

    assert stored(run) == wanted
    assert fill_rollups(run) == 0


def test_rollups_without_passes_are_recomputed(run, claim):
    log = LogBuilder().started().stepped(1).stepped(2)
    log.add(StepFinished, step=3, metrics={"time/step": 3.0})
    ingest(claim, log.events)
    run.refresh_from_db()
    wanted = stored(run)
    StepRollup.objects.all().update(passes=b"")

    assert fill_rollups(run) == 2

    assert stored(run) == wanted
    assert fill_rollups(run) == 0


def test_counts_by_the_highest_reward_are_called_so(run):
    run.summary["correct"] = "highest"

    assert correct_if(run, 1) == "the highest reward that the rules can give"
