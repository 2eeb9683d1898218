"""What the run list sorts by is right at every moment of a run's history."""

import math

import pytest

from dashboard.runs.charts.downsampling import make_summaries
from dashboard.runs.models import Evaluation, MetricSummary, Run, Step
from dashboard.runs.queries import run_directory
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import take_over
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import Evaluated, StepFinished

Summary = tuple[float, int, float, int, float, int, float, int]


def stored(run: Run) -> dict[str, Summary]:
    columns = ("last", "last_step", "low", "low_step", "high", "high_step", "total")
    rows = MetricSummary.objects.filter(run=run).values_list("name", *columns, "num")
    # Sums of batches round otherwise than one sum of all.
    return {name: (*rest[:6], round(rest[6], 9), rest[7]) for name, *rest in rows}


def counted(run: Run) -> dict[str, Summary]:
    """The slow way: from every value of the current history."""
    run.refresh_from_db()
    points: dict[str, list[tuple[int, float]]] = {}
    for one in Step.objects.filter(run=run, superseded_by=None).order_by("step"):
        for name, value in zip(run.metric_names, one.values, strict=False):
            if value is not None:
                points.setdefault(name, []).append((one.step, value))
    for each in Evaluation.objects.filter(run=run, superseded_by=None).order_by("step"):
        for name, value in each.metrics.items():
            if value is not None and not name.endswith(("/low", "/high")):
                points.setdefault(name, []).append((each.step, value))
    return {name: _summarize(one) for name, one in points.items()}


def _summarize(points: list[tuple[int, float]]) -> Summary:
    low_step, low = min(points, key=lambda point: (point[1], point[0]))
    high_step, high = max(points, key=lambda point: (point[1], -point[0]))
    total = round(math.fsum(value for _, value in points), 9)
    last_step, last = points[-1]
    return last, last_step, low, low_step, high, high_step, total, len(points)


def evaluated(log: LogBuilder, step: int, metrics: dict[str, float]) -> None:
    sizes = {"num_prompts": 8, "samples_per_prompt": 1}
    log.add(Evaluated, step=step, name="heldout", metrics=metrics, **sizes)


def make_log() -> LogBuilder:
    log = LogBuilder().started()
    for step, reward in enumerate((0.5, 0.25, 0.75, 0.75, None, 0.4), start=1):
        metrics = {"reward/mean": reward, "loss": -0.1 * step}
        if step > 3:
            metrics["entropy"] = 1.0 / step
        log.add(StepFinished, step=step, metrics=metrics)
        if step % 2 == 0:
            mean = step / 10
            measured = {"eval/heldout/mean": mean, "eval/heldout/mean/low": 0.0}
            evaluated(log, step, measured)
    return log


@pytest.mark.parametrize("size", [1, 5, 100])
def test_batches_of_any_size_make_the_same_summaries(run, claim, size):
    events = make_log().events

    for first in range(0, len(events), size):
        ingest(claim, events[first : first + size])
    ingest(claim, events)  # sent again, as after an outage

    assert stored(run) == counted(run)
    assert stored(run)["reward/mean"] == (0.4, 6, 0.25, 2, 0.75, 3, 2.65, 5)
    assert stored(run)["eval/heldout/mean"] == (0.6, 6, 0.2, 2, 0.6, 6, 1.2, 3)


def test_a_resume_removes_superseded_values(run, claim):
    directory = run_directory(run.id)
    log = LogBuilder().started()
    log.add(StepFinished, step=1, metrics={"reward/mean": 0.5}).saved(1)
    log.add(StepFinished, step=2, metrics={"reward/mean": 0.9, "late": 3.0})
    evaluated(log, 2, {"eval/heldout/mean": 0.9})
    log.write(directory.attempt(1).events)
    ingest(claim, log.events)
    assert stored(run)["reward/mean"][4] == 0.9
    save(directory, 1)
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    second = claim_run(run.id, "worker-2")
    assert second is not None
    supervisor_log = SupervisorLog(directory.attempt(2).supervisor_log, about="test")

    take_over(second, directory, supervisor_log=supervisor_log, keep_alive=lambda: None)

    assert stored(run) == counted(run)
    assert set(stored(run)) == {"reward/mean"}
    again = LogBuilder(attempt=2)
    again.add(StepFinished, step=2, metrics={"reward/mean": 0.7, "late": 2.0})
    ingest(second, again.events)
    assert stored(run) == counted(run)
    assert stored(run)["reward/mean"] == (0.7, 2, 0.5, 1, 0.7, 2, 1.2, 2)


def test_a_repeated_evaluation_counts_once(run, claim):
    log = LogBuilder().started()
    for mean in (0.25, 0.5):
        evaluated(log, 1, {"eval/heldout/mean": mean})

    ingest(claim, log.events)

    assert stored(run)["eval/heldout/mean"] == (0.25, 1, 0.25, 1, 0.25, 1, 0.25, 1)


def test_numbers_without_measure_stop_no_ingest(run, claim):
    log = LogBuilder().started()
    for step in range(1, 4):
        values = {"huge": 1.7e308, "low": -1.7e308, "none": float("nan")}
        log.add(StepFinished, step=step, metrics=values)

    for event in log.events:
        ingest(claim, [event])

    kept = stored(run)
    assert kept["huge"][4] == 1.7e308
    assert "none" not in kept
    make_summaries(run.id)
    assert stored(run) == kept


def test_backfilled_summaries_equal_those_of_ingest(run, claim):
    ingest(claim, make_log().events)
    wanted = stored(run)
    MetricSummary.objects.all().delete()

    make_summaries(run.id)

    assert stored(run) == wanted
