"""Curves are thinned in the database without losing what matters."""

import random

import pytest

from dashboard.runs.charts.series import Curve, make_buckets, read_history
from dashboard.runs.models import Run, Step
from tests.dashboard.completions.factories import make_steps
from tests.dashboard.runs.stories import make_history


def _curves(run: Run, metrics: list[str], **options: int) -> dict[str, Curve]:
    return read_history(run, metrics, **options).curves


def thin_slowly(
    values: list[float | None], *, max_points: int
) -> list[tuple[int, float]]:
    """Lowest, highest and last of each bucket, the plain way."""
    width = make_buckets(1, len(values), max_points).width
    kept: set[int] = set()
    buckets: dict[int, list[int]] = {}
    for i in range(len(values)):
        buckets.setdefault((i + 1) // width, []).append(i)
    for bucket in buckets.values():
        filled = [i for i in bucket if values[i] is not None]
        if filled:
            kept.add(min(filled, key=lambda i: (values[i], i)))
            kept.add(max(filled, key=lambda i: (values[i], -i)))
        if values[bucket[-1]] is not None:
            kept.add(bucket[-1])
    return [(i + 1, float(f"{values[i]:.7g}")) for i in sorted(kept)]


def test_a_short_history_is_complete(run):
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3], "lr": [1.0, None, 3.0]})

    curves = _curves(run, ["reward/mean", "lr"])

    assert curves["reward/mean"].steps == [1, 2, 3]
    assert curves["reward/mean"].values == [0.1, 0.2, 0.3]
    assert curves["lr"].steps == [1, 3]


@pytest.mark.parametrize("num_steps", [31, 1_001])
def test_a_downsampled_history_equals_the_slow_version(run, num_steps):
    values = [random.choice([None, random.random()]) for _ in range(num_steps)]
    other = [random.random() for _ in range(num_steps)]
    make_steps(run, {"first": other, "holey": values})

    curves = _curves(run, ["holey", "first"], max_points=30)

    for name, expected in (("holey", values), ("first", other)):
        curve = curves[name]
        found = list(zip(curve.steps, curve.values, strict=True))
        assert found == thin_slowly(expected, max_points=30)
        assert len(found) <= 30


def test_a_single_spike_survives(run):
    values: list[float | None] = [0.0] * 500
    values[314] = 99.0
    values[123] = -99.0
    make_steps(run, {"grad_norm": values})

    curve = _curves(run, ["grad_norm"], max_points=50)["grad_norm"]

    points = dict(zip(curve.steps, curve.values, strict=True))
    assert points[315] == 99.0
    assert points[124] == -99.0
    assert len(points) <= 50


def test_only_the_current_history_is_drawn(run):
    make_steps(run, {"reward/mean": [0.1, 0.2, 0.3]})
    old = Step.objects.get(run=run, step=3)
    old.superseded_by = 2
    old.save()
    Step.objects.create(run=run, step=3, attempt=2, seq=9, time=old.time, values=[0.9])

    assert _curves(run, ["reward/mean"])["reward/mean"].values == [0.1, 0.2, 0.9]


def test_a_later_metric_starts_later(run):
    make_steps(run, {"reward/mean": [0.1, 0.2]})
    run.metric_names = ["reward/mean", "late"]
    Step.objects.create(
        run=run, step=3, attempt=1, seq=3, time=run.created_at, values=[0.3, 7.0]
    )

    curves = _curves(run, ["late", "never"])

    assert (curves["late"].steps, curves["late"].values) == ([3], [7.0])
    assert curves["never"].steps == []


def test_nonfinite_values_are_omitted(run):
    bad: list[float | None] = [1.0, float("nan"), float("inf"), 4.0] * 20
    make_steps(run, {"loss": bad})

    for max_points in (9, 1_000):
        values = _curves(run, ["loss"], max_points=max_points)["loss"].values
        assert set(values) == {1.0, 4.0}


def test_the_clock_ends_with_the_last_step(run):
    make_history(run, num_steps=500, num_metrics=1)

    clock = read_history(run, ["metric/0"], max_points=50).clock

    last = Step.objects.get(run=run, step=500)
    assert clock.steps[-1] == 500
    assert clock.times[-1] == pytest.approx(last.time.timestamp())


def test_a_run_without_steps_has_empty_curves(run):
    assert _curves(run, ["reward/mean"])["reward/mean"].steps == []


def test_curves_take_the_same_few_queries_however_many_metrics(
    run, django_assert_num_queries
):
    make_history(run, num_steps=2_000, num_metrics=30)

    # Bounds; the points are read beside Django.
    with django_assert_num_queries(1):
        _curves(run, run.metric_names)
