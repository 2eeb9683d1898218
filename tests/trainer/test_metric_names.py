"""Titles, units and directions of metrics stand in one list."""

import pytest

from trainer.metric_names import (
    METRICS,
    OTHER,
    better_of,
    find_metric,
    group_names,
    list_titles,
    title_of,
)

ALL = [metric for group in METRICS.values() for metric in group]


def test_each_name_and_title_is_there_once():
    for field in ("name", "title"):
        values = [getattr(metric, field) for metric in ALL]
        assert len(set(values)) == len(values), field


@pytest.mark.parametrize(
    ("name", "title", "better"),
    [
        ("reward/mean", "Reward (mean)", "higher"),
        ("reward/short answer/mean", "Score of short answer", "higher"),
        ("reward/overlong/mean", "Length penalty", "higher"),
        ("kl/mean", "KL to reference (nats per token)", None),
        ("eval/heldout/pass@8", "Held-out pass@8", "higher"),
        ("eval/math/mean/low", "math: reward (lower bound)", "higher"),
        ("time/step", "Step time (seconds)", "lower"),
        ("critic/loss", "critic/loss", None),
        ("reward/a/b/mean", "b of a", None),
        ("reward/a/b/c/mean", "reward/a/b/c/mean", None),
    ],
)
def test_a_metric_has_a_title_with_its_unit_and_a_direction(name, title, better):
    assert title_of(name, with_unit=True) == title
    assert better_of(name) == better


def test_metrics_are_grouped_in_the_order_of_the_registry():
    names = ["speed", "kl/mean", "actor/loss", "reward/mean", "entropy"]

    assert group_names(names) == [
        ("Reward", ["reward/mean"]),
        ("Policy", ["kl/mean", "entropy"]),
        (OTHER, ["speed"]),
        ("actor", ["actor/loss"]),
    ]


def test_the_browser_gets_titles_with_their_places_for_names():
    titles = {name: title for name, title, *_ in list_titles()}

    assert titles["eval/<set>/pass@<k>"] == "Held-out pass@<k>"
    assert titles["kl/mean"] == "KL to reference (nats per token)"
    assert ("entropy", "nats per token") in {(n, unit) for n, *_, unit in list_titles()}


def test_the_exact_name_comes_before_one_with_places():
    found = find_metric("reward/overlong/mean")

    assert found is not None
    assert found.name == "reward/overlong/mean"
