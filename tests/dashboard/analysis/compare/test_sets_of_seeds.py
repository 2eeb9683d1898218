"""Sets of runs and their comparison."""

import json
import re
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse
from scipy import stats

from dashboard.analysis.compare.seeds import arrange
from dashboard.runs.charts.chart import figure_tree
from dashboard.runs.models import Run
from tests.dashboard.analysis.compare.seeds import make_seeds
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_run,
    make_steps,
)


@pytest.fixture(scope="module")
def base(shared_team) -> list[Run]:
    return make_seeds(shared_team, "base", 3, level=0.5, num_steps=60)


@pytest.fixture(scope="module")
def other(shared_team, base) -> list[Run]:
    kl = {"kl_coef": 0.04}
    return make_seeds(
        shared_team, "kl", 3, level=0.9, like=base[0], num_steps=60, loss=kl
    )


def get_page(client: Client, runs: list[Run], **query: object) -> Any:
    """With one metric at length."""
    ids = ",".join(str(run.pk) for run in runs)
    query = {"metric": "reward/mean", **query}
    response = client.get(reverse("compare", args=["alpha"]), {"runs": ids, **query})
    assert response.status_code == 200
    return response


def get(client: Client, runs: list[Run], **query: object) -> str:
    return re.sub(r"\s+", " ", get_page(client, runs, **query).text)


def verdict(client: Client, runs: list[Run], **query: object) -> Any:
    """Of the second set beside the baseline's."""
    return get_page(client, runs, **query).context["found"].contrasts[1].verdict


def figure(html: str, name: str = "compare-figure") -> dict[str, dict[str, Any]]:
    match = re.search(rf'id="{name}" type="application/json">(.*?)</script>', html)
    assert match
    return {trace["name"]: trace for trace in json.loads(match[1])["data"]}


def rewards(runs: list[Run]) -> dict[int, list[float]]:
    """By step, of the runs that have made it."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for step, values in run.steps.values_list("step", "values"):
            found.setdefault(step, []).append(values[0])
    return found


def test_runs_that_differ_in_their_seed_alone_are_one_set(base, other):
    arranged = arrange([other[0], *base, *other[1:]], "seeds")

    assert [one.runs for one in arranged.sets] == [other, base]
    assert [one.label for one in arranged.sets] == [
        "KL weight 0.04",
        "KL weight 0",
    ]


def test_runs_are_grouped_by_any_setting_in_which_they_differ(team, base, other):
    fast = {"learning_rate": 1e-4}
    more = make_seeds(team, "fast", 1, like=base[0], num_steps=60, optim=fast)

    arranged = arrange([*base, *other, *more], "loss.kl_coef")

    assert [one.runs for one in arranged.sets] == [[*base, *more], other]
    assert arranged.sets[0].varied == ["optim.learning_rate"]
    assert "optim.learning_rate" in arranged.choices


def test_runs_can_be_ungrouped(base):
    arranged = arrange(base, "none")

    assert [one.runs for one in arranged.sets] == [[run] for run in base]
    assert not arranged.has_bands


def test_a_band_is_the_mean_of_the_runs_there_are_and_its_interval(alice_client, team):
    base = make_seeds(team, "base", 4, level=0.5, num_steps=60)
    drawn = figure(get(alice_client, base))

    line, low = drawn["base"], drawn["base, 95% low"]
    by_step = rewards(base)
    assert line["x"] == sorted(by_step)
    for place, step in [(0, 1), (29, 30), (39, 40)]:
        values = by_step[step]
        interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert line["y"][place] == pytest.approx(np.mean(values), rel=1e-5)
        assert low["meta"]["raw"][place] == pytest.approx(interval.low, rel=1e-4)
    counts = drawn["base, n"]["y"]
    assert (counts[29], counts[30], counts[40], counts[50]) == (4, 3, 2, 1)
    # It leaves the means' range by half at most.
    assert min(low["y"]) >= min(line["y"]) - (max(line["y"]) - min(line["y"])) / 2
    assert "n 1:" in line["text"][50]
    # A band of one run has no width, and no interval in what is saved.
    assert low["y"][50] == line["y"][50]
    assert low["meta"]["raw"][50] is None

    # On a logarithmic axis it ends at the lowest point.
    drawn = figure(get(alice_client, base, y="log"))

    low = drawn["base, 95% low"]
    assert min(v for v in low["meta"]["raw"] if v is not None) < 0
    assert min(low["y"]) == min(v for v in drawn["base"]["y"] if v > 0)


def test_three_seeds_have_a_thin_line_each_and_no_band(alice_client, base, other):
    page = get_page(alice_client, [*base, *other], metric="reward/mean")

    drawn = page.context["charts"][0]["data"]
    assert [trace["meta"]["run"] for trace in drawn] == [r.pk for r in [*base, *other]]
    assert {trace["line"]["width"] for trace in drawn} == {1}
    assert "base, 95% low" not in figure(page.content.decode())


def test_an_iqm_is_of_the_runs_at_each_step(alice_client, team, base):
    more = make_seeds(team, "more", 5, like=base[0], num_steps=60)
    for place, run in enumerate(more):
        Run.objects.filter(pk=run.pk).update(
            config=make_config(seed=100 + place), name=f"base-{place}"
        )

    drawn = figure(get(alice_client, [*base, *more], stat="iqm"))

    values = rewards([*base, *more])[1]
    expected = stats.trim_mean(values, 0.25)
    assert drawn["base"]["y"][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("axis", "expected"), [("tokens", [0.0, 10.0, 20.0]), ("time", [0, 1 / 6, 2 / 6])]
)
def test_on_other_axes_runs_are_interpolated_at_common_positions(
    alice_client, team, axis, expected
):
    first = make_run(team, "a", config=make_config(seed=1))
    same = {"dataset_version": first.dataset_version}
    same |= {"recipe_version": first.recipe_version}
    second = make_run(team, "b", config=make_config(seed=2), **same)
    make_steps(first, {"reward/mean": [0, 2, 4], "total/tokens": [0, 10, 20]})
    make_steps(second, {"reward/mean": [1, 9, 3], "total/tokens": [0, 5, 15]})

    line = figure(get(alice_client, [first, second], x=axis))["a …"]

    assert line["x"] == pytest.approx(expected, abs=1e-4)
    # At 10 tokens the second is half way from 9 to 3; at 20 it has ended.
    at_ten = {"tokens": [0.5, 4.0, 4.0], "time": [0.5, 5.5, 3.5]}
    assert line["y"] == pytest.approx(at_ten[axis])


def test_plotly_knows_all_that_the_layouts_say(alice_client, base, other):
    for query in ({"by": "none"}, {"y": "log"}, {"x": "tokens"}):
        found = get_page(alice_client, [*base, *other], **query).context["found"]

        for drawn in filter(None, (found.figure, found.differences)):
            layout = drawn["layout"]
            assert figure_tree([], **layout)["layout"] == layout


def test_a_run_whose_tokens_were_not_counted_is_named_and_left_out(
    alice_client, team, base
):
    uncounted = make_run(team, "uncounted")
    make_steps(uncounted, {"reward/mean": [0.1]})

    page = get_page(alice_client, [*base, uncounted], x="tokens")

    assert page.context["found"].uncounted == [uncounted]


def test_different_sets_are_distinguishable(alice_client, base, other):
    page = get_page(alice_client, [*base, *other])

    assert 'data-verdict="better"' in page.text
    window = page.context["found"].window  # a tenth of the 40 that all have made
    assert (window.first, window.last, window.shortest) == (37, 40, base[2])
    means = [
        [np.mean(run.steps.filter(step__range=(37, 40)).values_list("values__0"))]
        for run in [*base, *other]
    ]
    welch = stats.ttest_ind(means[3:], means[:3], equal_var=False)
    low, high = (end[0] for end in welch.confidence_interval(0.95))
    assert f"+{low:.3g} … +{high:.3g}" in page.text
    html = re.sub(r"\s+", " ", page.text)
    assert '<th scope="row" class="mono">seed</th> <td><bdi>0, 1, 2</bdi></td>' in html

    # The same numbers come with the figure.
    ids = ",".join(str(run.pk) for run in [*base, *other])
    url = reverse("compare_figure", args=["alpha"])
    answer = alice_client.get(url, {"runs": ids, "window": "5"}).json()

    assert "36–40" in answer["contrasts"]
    assert "KL weight 0.04 − KL weight 0" in [  # a label
        trace["name"] for trace in answer["differences"]["data"]
    ]


def test_similar_sets_are_not_distinguishable(alice_client, team, base, other):
    near = make_seeds(
        team, "near", 3, level=0.52, like=base[0], num_steps=60, loss={"kl_coef": 0.1}
    )

    assert verdict(alice_client, [*base, *near]).kind == "open"
    assert verdict(alice_client, [*base, other[0]]).kind == "one"
    ungrouped = get_page(alice_client, [base[0], other[0]], metric="kl/mean")
    assert "data-verdict" not in ungrouped.text
    assert ungrouped.context["found"].better == "neither"  # no one says what is best


def test_one_seed_each_has_no_test(alice_client, team, base, other):
    html = get(alice_client, [*base, other[0]])

    assert 'data-verdict="one"' in html
    for page in (html, get(alice_client, [base[0], other[0]])):
        assert set(re.findall(r'data-direction="(\w+)"', page)) == {"same"}


def test_equal_seeds_are_compared_pair_by_pair_on_demand(alice_client, base, other):
    # In another order: pairs are found by their seeds.
    runs = [*base, *reversed(other)]
    found = verdict(alice_client, runs, paired="on", window=10)

    pairs = [
        np.mean(run.steps.filter(step__range=(31, 40)).values_list("values__0"))
        for run in [*base, *other]
    ]
    differences = np.subtract(pairs[3:], pairs[:3])
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert found.is_paired
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-4)

    unlike = get_page(alice_client, [*base, *other[:2]], paired="on").context["found"]

    assert not unlike.pairable
    assert not unlike.contrasts[1].verdict.is_paired


def test_the_direction_can_be_lower(alice_client, team, base):
    runs = []
    for kl_coef, values in ((0.0, [3.0, 2.5]), (0.04, [1.0, 2.0])):
        for seed in (1, 2):
            config = make_config(seed=seed, loss={"kl_coef": kl_coef})
            runs.append(make_run(team, f"run-{seed}", config=config))
            make_steps(runs[-1], {"time/step": values})
    chosen = {"metric": "time/step", "by": "loss.kl_coef"}

    html = get(alice_client, runs, **chosen)
    turned = get(alice_client, runs, **chosen, better="higher")

    table = html.split('id="numbers-title"')[1]
    assert ">Lowest<" in table
    assert 'data-direction="better">−1.5' in table  # lowest: 1 beside 2.5
    assert 'data-direction="worse">−1<' in turned  # highest: 2 beside 3


def test_recipes_are_compared_rule_by_rule(alice_client, team, base):
    rules = [
        {**RULES[1], "weight": 0.5},
        {"name": "short", "kind": "length", "weight": 0.1, "params": {}},
    ]
    changed = make_run(team, "changed", config=make_config(rules))

    html = get(alice_client, [base[0], changed])

    assert re.findall(r'data-kind="(\w+)">\w+</span> <strong>(\w+)<', html) == [
        ("removed", "answer"),
        ("added", "short"),
        ("changed", "format"),
    ]
    assert "<bdi>0.2</bdi> → <bdi>0.5</bdi>" in html
    assert "0.5·format + 0.1·short" in html


def test_a_set_has_at_most_twenty_runs(alice_client, team):
    version = make_run(team)
    same = {
        "dataset_version": version.dataset_version,
        "recipe_version": version.recipe_version,
    }
    runs = [
        make_run(team, f"s-{seed}", config=make_config(seed=seed), **same)
        for seed in range(22)
    ]

    page = get_page(alice_client, runs)

    (one,) = page.context["arrangement"].sets
    assert (len(one.runs), one.num_found) == (20, 22)
    assert page.context["selection"].num_chosen == 22


def test_a_set_costs_no_more_queries_than_a_run(
    alice_client, base, django_assert_num_queries
):
    url = reverse("compare_figure", args=["alpha"])
    one, all_ = str(base[0].pk), ",".join(str(run.pk) for run in base)
    alice_client.get(url, {"runs": one})

    for ids in (one, all_):
        # Of the session, the person, the team, the runs and their held-out sets; those
        # of the points are not counted here.
        with django_assert_num_queries(5):
            alice_client.get(url, {"runs": ids})
