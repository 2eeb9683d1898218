"""A fork continues its parent's totals, on every axis of its charts."""

from datetime import UTC, datetime, timedelta

import pytest

from dashboard.analysis.compare.points import read_points
from dashboard.runs.charts.series import read_history
from dashboard.runs.models import Checkpoint, Run, Step
from dashboard.runs.progress import describe_progress
from dashboard.supervision.takeover import cut_history
from tests.dashboard.runs.stories import Story
from tests.dashboard.supervision.test_forking_a_run import fork, keep

SAMPLED = {"sampling/num_tokens": 300.0, "sampling/num_completions": 32.0}
START = datetime(2026, 3, 1, tzinfo=UTC)


def take_steps(story: Story, count: int, *, seconds: int, **metrics: float) -> None:
    """Each of so many seconds."""
    begun = story.step
    story.take_steps(count, **metrics)
    for step in range(begun + 1, story.step + 1):
        time = START + timedelta(seconds=seconds * step)
        Step.objects.filter(run=story.run, step=step).update(time=time)


def checkpoint_at(run: Run, step: int) -> Checkpoint:
    kept = keep(run, step)
    return Checkpoint.objects.select_related("run").get(pk=kept.pk)


def go_on(child: Run) -> Story:
    assert child.fork_step is not None
    story = Story(child)
    story.start()
    story.step = child.fork_step
    return story


@pytest.fixture
def parent(run) -> Story:
    story = Story(run)
    story.start()
    take_steps(story, 5, seconds=10, **SAMPLED)
    return story


def totals(run: Run) -> list[float]:
    return (
        read_history(Run.objects.get(pk=run.pk), ["total/tokens"])
        .curves["total/tokens"]
        .values
    )


def test_a_fork_adds_to_its_parents_totals(parent, launch):
    child = fork(checkpoint_at(parent.run, 4), launch)

    take_steps(go_on(child), 2, seconds=5, **SAMPLED)

    assert child.fork_totals == {
        "total/tokens": 1200,
        "total/completions": 128,
        "seconds": 30,  # since the end of the first step
    }
    assert totals(child) == [1500, 1800]
    assert describe_progress(child).fork == {
        "run": parent.run.pk,
        "step": 4,
        "seconds": 30,
    }


def test_a_fork_of_a_fork_counts_all(parent, launch):
    child = fork(checkpoint_at(parent.run, 4), launch)
    story = go_on(child)
    take_steps(story, 2, seconds=5, **SAMPLED)

    grandchild = fork(checkpoint_at(child, 6), launch)
    at_origin = fork(checkpoint_at(child, 4), launch)

    # Two steps of 5 s: the first began where the parent's curve ends.
    assert grandchild.fork_totals == {
        "total/tokens": 1800,
        "total/completions": 192,
        "seconds": 40,
    }
    assert at_origin.fork_totals == child.fork_totals


def test_a_restarted_fork_counts_from_the_fork_point(parent, launch):
    child = fork(checkpoint_at(parent.run, 4), launch)
    story = go_on(child)
    take_steps(story, 2, seconds=5, **SAMPLED)

    cut_history(story.claim, after=4, checkpoint=None)
    again = Run.objects.get(pk=child.pk)

    assert again.summary["last"] == {"total/tokens": 1200, "total/completions": 128}


def test_missing_totals_are_not_inherited(run, launch):
    story = Story(run)
    story.start()
    take_steps(story, 5, seconds=10)

    child = fork(checkpoint_at(run, 4), launch)
    take_steps(go_on(child), 2, seconds=5, **SAMPLED)

    assert child.fork_totals == {"seconds": 30}
    assert "total/tokens" not in Run.objects.get(pk=child.pk).metric_names


def test_runs_are_compared_by_sampled_completions(parent, launch):
    child = fork(checkpoint_at(parent.run, 4), launch)
    take_steps(go_on(child), 2, seconds=5, **SAMPLED)
    child = Run.objects.get(pk=child.pk)

    def place(run: Run, axis: str) -> list[float]:
        return read_points([run], "reward/mean", axis=axis)[run.pk].at.tolist()

    assert place(child, "samples") == [160, 192]
    assert place(child, "time") == pytest.approx([35 / 60, 40 / 60], abs=1e-4)
    assert place(Run.objects.get(pk=parent.run.pk), "samples")[3] == 128
