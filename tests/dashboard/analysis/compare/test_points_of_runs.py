"""Every point of a run is read; of a long one what a chart draws, spikes included."""

import math
from datetime import timedelta

import numpy as np
import pytest

from dashboard.analysis.compare.points import read_drawn, read_means, read_points
from dashboard.analysis.compare.series import (
    MAX_POINTS,
    find_window,
    smooth,
    smooth_all,
    thin,
)
from dashboard.runs.charts.downsampling import build_rollups
from dashboard.runs.charts.series import read_steps
from dashboard.runs.models import Run, Step
from tests.dashboard.completions.factories import (
    START,
    make_evaluation,
    make_run,
    make_steps,
)


@pytest.fixture
def run(team) -> Run:
    run = make_run(team)
    curves = {"reward/mean": [0.1, math.nan, None, math.inf, 0.5]}
    make_steps(run, {**curves, "total/tokens": [10, 20, 30, 40, 50]})
    return run


def add_step(run: Run, step: int, value: float, superseded_by: int | None) -> None:
    Step.objects.create(
        run=run,
        step=step,
        attempt=1,
        seq=100 + step,
        time=START,
        values=[value, 5.0],
        superseded_by=superseded_by,
    )


@pytest.mark.django_db
def test_only_numbers_of_the_current_history_are_read(run):
    add_step(run, 5, 9.0, superseded_by=2)

    points = read_points([run], "reward/mean", axis="tokens")[run.pk]

    assert points.steps.tolist() == [1, 5]
    assert points.values.tolist() == [0.1, 0.5]
    assert points.at.tolist() == [10, 50]


@pytest.mark.django_db
def test_points_rise_by_step_however_they_are_stored(run):
    add_step(run, 0, 0.3, superseded_by=None)

    points = read_points([run], "reward/mean", axis="step")[run.pk]

    assert points.steps.tolist() == [0, 1, 5]
    assert points.values.tolist() == [0.3, 0.1, 0.5]


@pytest.mark.django_db
def test_runs_are_read_by_their_own_metric_index(team, run):
    other = make_run(team, "other")
    make_steps(other, {"loss": [7.0], "reward/mean": [0.9]})
    lacking = make_run(team, "lacking")

    found = read_points([run, other, lacking], "reward/mean", axis="step")

    assert found[other.pk].values.tolist() == [0.9]
    assert len(found[lacking.pk]) == 0


@pytest.mark.django_db
def test_chosen_steps_of_several_runs_stay_with_their_run(team, run):
    runs = [make_run(team, f"other-{i}") for i in range(3)]
    names = (["loss", "kl"], ["loss", "kl"], ["kl", "loss"])
    for run_, columns, value in zip(runs, names, (10.0, 20.0, 30.0), strict=True):
        curves = {"loss": [value, value + 1, value + 2], "kl": [0.0, 0.0, 0.0]}
        make_steps(run_, {name: curves[name] for name in columns})
    at: dict[int, list[int]] = {runs[0].pk: [1, 3], runs[2].pk: [2, 9], run.pk: []}

    read = read_steps([*runs, run], ["loss"], at=at)

    losses = [read[run_.pk].metrics["loss"].values.tolist() for run_ in runs]
    assert losses == [[10.0, 12.0], [20.0, 21.0, 22.0], [31.0]]
    assert len(read[run.pk].times) == 0


@pytest.mark.django_db
def test_held_out_scores_lie_between_the_steps_around_them(run):
    for step in (0, 2):
        make_evaluation(
            run,
            step,
            {"eval/heldout/mean": 0.25},
            seq=200 + step,
            time=START + timedelta(hours=1),
        )
    # Of steps 2 and 3 nothing is known but their neighbours.
    Step.objects.filter(run=run, step__in=(2, 3)).delete()

    tokens = read_points([run], "eval/heldout/mean", axis="tokens")[run.pk]
    time = read_points([run], "eval/heldout/mean", axis="time")[run.pk]

    assert tokens.at.tolist() == [10, 20]
    assert time.at.tolist() == pytest.approx([0, 10 / 60])


def test_a_thousand_points_are_drawn_without_losing_spikes():
    values = np.sin(np.arange(100_003) / 500)
    values[[7, 55_555, 100_001]] = [9, -9, 8]
    values[1_000:1_100] = np.nan

    drawn = thin(values, values)

    assert len(drawn) <= MAX_POINTS
    assert {7, 55_555, 100_001, 100_002} <= set(drawn.tolist())
    assert (np.diff(drawn) > 0).all()


def test_few_points_are_all_drawn():
    assert thin(np.zeros(1_000), np.zeros(1_000)).tolist() == list(range(1_000))


@pytest.mark.parametrize("weight", [0.01, 0.6, 0.99])
def test_smoothing_all_points_is_smoothing_them_one_by_one(weight):
    values = np.random.default_rng(3).normal(size=3_001)

    assert smooth_all(values, weight) == pytest.approx(smooth(values.tolist(), weight))


@pytest.mark.django_db
def test_a_window_ends_where_the_first_run_ends(team):
    runs = []
    for name, num in (("long", 50), ("short", 30), ("queued", 0)):
        run = make_run(team, name)
        if num:
            make_steps(run, {"reward/mean": [0.1] * num})
        runs.append(run)
    points = read_points(runs, "reward/mean", axis="step")

    tenth = find_window(runs, points, None)
    wide = find_window(runs, points, 100)

    assert tenth
    assert (tenth.first, tenth.last, tenth.num_common) == (28, 30, 30)
    assert tenth.shortest == runs[1]
    assert wide
    assert (wide.first, wide.num) == (1, 30)
    assert find_window(runs[2:], points, None) is None


@pytest.mark.django_db
@pytest.mark.parametrize("axis", ["step", "time", "tokens"])
def test_points_equal_the_stored_values(team, axis):
    first, other = make_run(team), make_run(team, "other")
    values = np.random.default_rng(4).normal(size=300)
    tokens = np.arange(300) * 7.0
    make_steps(first, {"reward/mean": values.tolist(), "total/tokens": tokens.tolist()})
    make_steps(
        other, {"total/tokens": tokens.tolist(), "reward/mean": (-values).tolist()}
    )

    found = read_points([first, other], "reward/mean", axis=axis)

    rows = first.steps.order_by("step").values_list("step", "time")
    steps = np.array([step for step, _ in rows], np.float64)
    seconds = np.array([time.timestamp() for _, time in rows])
    at = {"step": steps, "time": (seconds - seconds[0]) / 60, "tokens": tokens}
    for run, expected in ((first, values), (other, -values)):
        assert found[run.pk].values.tolist() == expected.tolist()
        assert found[run.pk].at.tolist() == at[axis].tolist()


@pytest.fixture
def long_runs(team) -> list[Run]:
    """3,000 steps with a spike, a metric of every hundredth step, and rollups."""
    runs = []
    for name in ("one", "two"):
        run = make_run(team, name)
        values = np.sin(np.arange(3_000) / 100)
        values[1_234 if name == "one" else 2_345] = 9
        rare = [float(i) if i % 100 == 0 else None for i in range(3_000)]
        tokens = (np.arange(3_000) * 7.0).tolist()
        curves = {"reward/mean": values.tolist(), "rare": rare, "total/tokens": tokens}
        make_steps(run, curves)
        Run.objects.filter(pk=run.pk).update(last_step=3_000)
        run.last_step = 3_000
        build_rollups(run.pk, first_step=1, last_step=3_000)
        runs.append(run)
    return runs


@pytest.mark.django_db
@pytest.mark.parametrize(
    "axis", [pytest.param("step", marks=pytest.mark.slow), "tokens"]
)
def test_a_long_runs_points_are_read_thinned_without_losing_spikes(long_runs, axis):
    found = read_drawn(long_runs, ["reward/mean"], axis=axis, most=300)["reward/mean"]

    for run, spike in zip(long_runs, (1_235, 2_346), strict=True):
        points = found[run.pk]
        assert not points.is_whole
        assert len(points) < 400
        assert (points.steps[0], points.steps[-1]) == (1, 3_000)
        place = points.steps.tolist().index(spike)
        assert points.values[place] == 9
        at = spike if axis == "step" else (spike - 1) * 7
        assert points.at[place] == pytest.approx(at, abs=3)
        assert (np.diff(points.steps) > 0).all()


@pytest.mark.django_db
def test_aligned_runs_are_read_at_the_same_steps(long_runs):
    found = read_drawn(
        long_runs, ["reward/mean"], axis="step", most=300, is_aligned=True
    )["reward/mean"]

    one, two = (found[run.pk] for run in long_runs)
    assert one.steps.tolist() == two.steps.tolist()
    assert len(one) == 150


@pytest.mark.django_db
def test_a_metric_of_few_steps_is_read_whole(long_runs):
    found = read_drawn(long_runs, ["rare"], axis="step", most=300)["rare"]

    assert found[long_runs[0].pk].values.tolist() == [100.0 * i for i in range(30)]


@pytest.mark.django_db
def test_means_are_of_every_step(long_runs):
    points = read_drawn(long_runs, ["reward/mean"], axis="step", most=300)

    means = read_means(long_runs, "reward/mean", points["reward/mean"], 1_001, 1_300)

    values = np.sin(np.arange(1_000, 1_300) / 100)
    values[234] = 9
    assert means[long_runs[0].pk] == pytest.approx(values.mean())


@pytest.mark.django_db
def test_means_of_ended_runs_hold_until_their_next_event(long_runs):
    points = read_drawn(long_runs, ["reward/mean"], axis="step", most=300)

    def mean() -> float:
        found = read_means(long_runs, "reward/mean", points["reward/mean"], 1, 100)
        return found[long_runs[0].pk]

    before = mean()
    Step.objects.filter(run=long_runs[0]).update(values=[5.0, None, 1.0])
    assert mean() == before

    long_runs[0].seq += 1
    assert mean() == 5.0

    Step.objects.filter(run=long_runs[0]).update(values=[6.0, None, 1.0])
    long_runs[0].state = "running"
    assert mean() == 6.0
