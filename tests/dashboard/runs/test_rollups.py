"""Long histories are read from rollups that are built while a run is ingested."""

from collections.abc import Callable

import pytest

from dashboard.runs.charts.downsampling import WIDTH, build_rollups
from dashboard.runs.charts.series import History, read_history
from dashboard.runs.models import Rollup, Run, Step
from dashboard.supervision.lease import Claim, claim_run
from dashboard.supervision.takeover import cut_history
from tests.dashboard.completions.factories import make_run, make_steps
from tests.dashboard.runs.stories import Story, make_history, queue_run


def read_both(run: Run, **bounds: int) -> tuple[History, History]:
    """By rollups, and then without any."""
    rolled = read_history(run, run.metric_names, max_points=30, **bounds)
    Rollup.objects.filter(run=run).delete()
    return rolled, read_history(run, run.metric_names, max_points=30, **bounds)


def test_rollups_give_what_the_steps_themselves_give(team):
    run = make_run(team)
    make_history(run, num_steps=3_000, num_metrics=3)
    assert run.rollups.count() == 3_001 // WIDTH

    for bounds in ({}, {"first_step": 300}, {"last_step": 2_345}):
        rolled, plain = read_both(run, **bounds)

        assert rolled.width >= WIDTH
        assert rolled == plain, bounds
        build_rollups(run.id, first_step=1, last_step=3_000)


def test_holes_and_numbers_that_are_not_finite_stay_out_of_rollups(team):
    run = make_run(team)
    cycle: list[float | None] = [None, float("nan"), 3.0, float("inf"), -2.0, 5.0]
    make_steps(run, {"holey": cycle * 200, "never": [None] * 1_200})
    run.refresh_from_db()
    build_rollups(run.id, first_step=1, last_step=1_200)

    rolled, plain = read_both(run)

    assert rolled == plain
    assert set(rolled.curves["holey"].values) == {-2.0, 3.0, 5.0}
    assert rolled.curves["never"].steps == []


def test_a_metric_that_came_later_is_rolled_up_too(team):
    run = make_run(team)
    make_history(run, num_steps=1_000, num_metrics=1)
    Rollup.objects.filter(run=run).delete()
    run.metric_names = [*run.metric_names, "late"]
    run.save()
    for step in Step.objects.filter(run=run, step__gt=900):
        step.values = [*step.values, float(step.step)]
        step.save()
    build_rollups(run.id, first_step=1, last_step=1_000)

    rolled, plain = read_both(run)

    assert rolled == plain
    assert rolled.curves["late"].steps[0] == 901


def test_ingest_builds_them_as_their_steps_come(team):
    story = Story(queue_run(team, num_steps=1_000))
    story.start()

    story.take_steps(WIDTH - 2)
    assert story.run.rollups.count() == 0
    story.take_steps(1)

    rollup = story.run.rollups.get()
    assert (rollup.bucket, rollup.last_step) == (0, WIDTH - 1)
    assert len(rollup.lows) == len(Run.objects.get(id=story.run.id).metric_names)


def test_a_run_from_before_there_were_rollups_gets_the_missing_ones(team):
    story = Story(queue_run(team, num_steps=1_000))
    story.start()
    story.take_steps(2 * WIDTH)
    Rollup.objects.all().delete()

    story.take_steps(WIDTH)

    buckets = story.run.rollups.order_by("bucket").values_list("bucket", flat=True)
    assert list(buckets) == [0, 1, 2]


@pytest.fixture
def resume(team) -> Callable[[Story, int], Claim]:
    def resume_after(story: Story, step: int) -> Claim:
        Run.objects.filter(id=story.run.id).update(state="queued", lease_until=None)
        claim = claim_run(story.run.id, "worker-2")
        assert claim is not None
        cut_history(claim, after=step, checkpoint=None)
        return claim

    return resume_after


def test_a_resume_deletes_rollups_after_its_checkpoint(team, resume):
    story = Story(queue_run(team, num_steps=1_000))
    story.start()
    story.take_steps(3 * WIDTH)

    for step, kept in (
        (2 * WIDTH, [2 * WIDTH - 1, WIDTH - 1]),
        (WIDTH - 1, [WIDTH - 1]),
        (WIDTH - 2, []),
    ):
        resume(story, step)

        rollups = story.run.rollups.order_by("-bucket")
        assert list(rollups.values_list("last_step", flat=True)) == kept, step


SAMPLED = {"sampling/num_tokens": 300.0, "sampling/num_completions": 32.0}


def test_totals_start_at_the_first_step(team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(3, **SAMPLED)

    run = Run.objects.get(id=story.run.id)
    curves = read_history(run, ["total/tokens", "total/completions"]).curves

    assert curves["total/tokens"].values == [300, 600, 900]
    assert curves["total/completions"].values == [32, 64, 96]
    assert run.summary["last"]["total/tokens"] == 900


def test_a_resumed_run_adds_up_from_its_checkpoint(team, resume):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(5, **SAMPLED)

    story.claim = resume(story, 2)
    story.line, story.step = 0, 2
    story.take_steps(1, **SAMPLED)

    run = Run.objects.get(id=story.run.id)
    assert read_history(run, ["total/tokens"]).curves["total/tokens"].values == [
        300,
        600,
        900,
    ]


def test_a_run_whose_beginning_was_not_counted_has_no_totals(team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(2)
    story.take_steps(2, **SAMPLED)

    run = Run.objects.get(id=story.run.id)
    assert "total/tokens" not in run.metric_names
