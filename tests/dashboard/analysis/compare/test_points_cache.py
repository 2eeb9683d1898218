"""Points are read once, and again as soon as the run's history is another."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.accounts.models import Team
from dashboard.analysis.compare.points import Points, PointsCache, cache, read_points
from dashboard.runs.models import Run
from tests.dashboard.samples.factories import START, make_run, make_steps


@pytest.fixture
def run(team: Team) -> Run:
    cache.clear()
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3], "loss": [1.0, 2.0, 3.0]})
    run.seq = 3
    run.save()
    return run


def read_values(run: Run, metric: str = "reward/mean") -> list[float]:
    points = read_points([run], metric, axis="step")[run.pk]
    return [float(value) for value in points.values]


def change_unnoticed(run: Run) -> None:
    """Change stored values without an event, so that cached points differ from them."""
    run.steps.update(values=[0.9, 9.0])


@pytest.mark.django_db
def test_points_are_cached(run: Run) -> None:
    read_values(run)
    change_unnoticed(run)

    assert read_values(run) == [0.1, 0.2, 0.3]
    assert read_values(run, "loss") == [9.0, 9.0, 9.0]


@pytest.mark.django_db
@pytest.mark.parametrize("moved", ["seq", "attempt"])
def test_a_run_that_went_on_is_read_again(run: Run, moved: str) -> None:
    read_values(run)
    change_unnoticed(run)
    setattr(run, moved, getattr(run, moved) + 1)

    assert read_values(run) == [0.9, 0.9, 0.9]


@pytest.mark.django_db
def test_steps_newer_than_the_run_as_it_was_read_are_not_kept(run: Run) -> None:
    run.steps.create(step=4, attempt=1, seq=4, time=START, values=[0.4, 4.0])

    assert read_values(run) == [0.1, 0.2, 0.3, 0.4]
    change_unnoticed(run)
    assert read_values(run) == [0.9] * 4


@pytest.mark.django_db
def test_only_uncached_runs_are_read(team: Team, run: Run) -> None:
    read_values(run)
    change_unnoticed(run)
    other = make_run(team, "other")
    make_steps(other, {"reward/mean": [0.7]})

    found = read_points([other, run], "reward/mean", axis="step")

    assert found[other.pk].values.tolist() == [0.7]
    assert found[run.pk].values.tolist() == [0.1, 0.2, 0.3]


def test_the_least_recently_used_points_are_evicted() -> None:
    points = Points(steps=np.arange(3), at=np.arange(3.0), values=np.arange(3.0))
    two = PointsCache[Points](2 * points.nbytes)
    runs = [Run(pk=pk, attempt=1, seq=3) for pk in (1, 2, 3)]
    for run in runs[:2]:
        two.keep(run, "loss", "step", points)

    two.find(runs[0], "loss", "step")
    two.keep(runs[2], "loss", "step", points)
    two.keep(runs[2], "loss", "step", points)  # in its own place

    found = [two.find(run, "loss", "step") for run in runs]
    assert found == [points, None, points]
