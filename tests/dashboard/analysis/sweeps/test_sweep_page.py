"""The page of a sweep: axes, stretches that are kept, weights and the table."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.analysis.sweeps.axes import (
    Axis,
    AxisRange,
    SweptSetting,
    design,
    in_ranges,
    read_ranges,
    swept_settings,
)
from dashboard.analysis.sweeps.importance import read_outcomes
from dashboard.runs.charts.downsampling import make_summaries
from dashboard.runs.models import Run, Sweep
from tests.dashboard.completions.factories import (
    make_config,
    make_dataset,
    make_evaluation,
    make_recipe,
    make_run,
    make_steps,
)

RATES = (1e-6, 1e-5, 1e-4)


def get(client: Client, query: str, slug: str = "alpha", status: int = 200) -> Any:
    response = client.get(reverse("sweep", args=[slug]) + query)
    assert response.status_code == status
    return response


def figures(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.context["sweep"].figures
    return found


@pytest.fixture(scope="module")
def group(shared_team) -> Sweep:
    """Three learning rates, two aggregations, two seeds; the rate decides."""
    group = Sweep.objects.create(team=shared_team, name="rates")
    version, recipe = make_dataset(shared_team), make_recipe(shared_team)
    for i, rate in enumerate(RATES):
        for aggregation in ("token_mean", "sequence_mean_token_mean"):
            for seed in (0, 1):
                run = make_run(
                    shared_team,
                    f"rates-{rate}-{aggregation}-{seed}",
                    sweep=group,
                    dataset_version=version,
                    recipe_version=recipe,
                    config=make_config(
                        optim={"learning_rate": rate},
                        loss={"aggregation": aggregation},
                        seed=seed,
                    ),
                    last_step=20,
                )
                end = 0.2 + 0.3 * i + 0.01 * seed
                rewards: list[float | None] = [*([0.0] * 18), end - 0.1, end]
                make_steps(run, {"reward/mean": rewards})
                run.summary = {"last": {"reward/mean": end}}
                run.save()
    return group


def runs_of(group: Sweep) -> list[Run]:
    return list(
        group.runs.order_by("pk").select_related(
            "dataset_version__dataset", "recipe_version__recipe"
        )
    )


def test_sweep_settings_are_the_differing_ones_except_the_seed(group):
    found = {one.key: one for one in swept_settings(runs_of(group))}

    assert found.keys() == {"optim.learning_rate", "loss.aggregation"}
    assert found["optim.learning_rate"].values == ["1e-6", "1e-5", "0.0001"]
    assert found["optim.learning_rate"].is_log
    assert found["loss.aggregation"].numbers is None


def test_versions_are_sorted_by_their_numbers():
    texts = ["right v10", "right v9", "right v1", "right v9"]
    swept = SweptSetting(key="recipe", aliases=[], texts=texts, numbers=None)

    assert swept.values == ["right v1", "right v9", "right v10"]


def test_settings_that_always_go_together_are_one(team):
    version, recipe = make_dataset(team), make_recipe(team)
    runs = [
        make_run(
            team,
            f"twin-{i}",
            dataset_version=version,
            recipe_version=recipe,
            model_label=f"model-{i}",
            config=make_config(optim={"learning_rate": rate}),
        )
        for i, rate in enumerate(RATES)
    ]

    (one,) = swept_settings(runs)

    assert (one.key, one.aliases) == ("optim.learning_rate", ["model"])


def test_an_outcome_is_computed_from_all_stored_steps(group):
    runs = runs_of(group)
    for run in runs:
        make_summaries(run.pk)
    expected = {"last": 0.8, "tail": 0.75, "highest": 0.8, "lowest": 0.0}

    found = {kind: read_outcomes(runs, "reward/mean", kind) for kind in expected}

    of_one = {kind: outcomes[runs[8].pk] for kind, outcomes in found.items()}
    assert of_one == pytest.approx(expected)


def test_values_that_are_not_finite_are_no_outcome(team):
    run = make_run(team, last_step=2)
    make_steps(run, {"loss": [float("nan"), float("inf")]})
    run.summary = {"last": {"loss": float("inf")}}
    make_summaries(run.pk)

    for kind in ("last", "tail", "highest", "lowest"):
        assert read_outcomes([run], "loss", kind) == {run.pk: None}, kind


def test_a_step_that_a_resume_went_back_before_does_not_count(team):
    run = make_run(team, last_step=2)
    make_steps(run, {"reward/mean": [0.1, 0.2]})
    run.steps.filter(step=2).update(superseded_by=2)
    make_summaries(run.pk)

    for kind in ("highest", "tail"):
        outcome = {"highest": 0.1, "tail": None}[kind]
        assert read_outcomes([run], "reward/mean", kind) == {run.pk: outcome}, kind


def test_an_evaluation_is_an_outcome_too(team):
    run = make_run(team, last_step=20)
    for step, mean in [(5, 0.9), (10, 0.1), (20, 0.5), (25, None)]:
        make_evaluation(run, step, {"eval/held/mean": mean}, name="held", seq=step)
    make_summaries(run.pk)
    run.summary = {"last": {"eval/held/mean": 0.5}}
    expected = {"last": 0.5, "tail": 0.5, "highest": 0.9, "lowest": 0.1}

    for kind, value in expected.items():
        assert read_outcomes([run], "eval/held/mean", kind) == {run.pk: value}, kind


def test_a_number_of_four_values_has_a_curve_and_with_few_runs_a_line(team):
    version, recipe = make_dataset(team), make_recipe(team)
    runs = [
        make_run(
            team,
            f"lr-{i}",
            dataset_version=version,
            recipe_version=recipe,
            config=make_config(optim={"learning_rate": (i % 4 + 1) * 1e-6}, seed=i),
        )
        for i in range(6)
    ]

    settings = swept_settings(runs)

    assert not design(settings, 6).is_straight
    assert design(settings, 6).columns[0].shape == (6, 2)
    assert design(settings, 5).is_straight
    assert re.findall(r"\d", design(settings, 4).problem)[-2:] == ["5", "4"]


def test_ranges_include_their_ends(group):
    settings = swept_settings(runs_of(group))
    axes = [Axis.of(one) for one in settings]

    kept, problem = read_ranges(
        ["optim.learning_rate:1e-5..1e-4", "loss.aggregation:0..0"], axes
    )

    assert problem == ""
    assert kept[0] == AxisRange(key="optim.learning_rate", low=1e-5, high=1e-4)
    assert str(kept[0]) == "optim.learning_rate:1e-5..0.0001"
    inside = in_ranges(axes, kept, 12)
    assert [i for i, one in enumerate(inside) if one] == [6, 7, 10, 11]


def test_an_invalid_range_is_named(group):
    axes = [Axis.of(one) for one in swept_settings(runs_of(group))]

    for word in (
        "optim.learning_rate",
        "optim.learning_rate:1..",
        "optim.learning_rate:a..b",
        "optim.learning_rate:1e9999..2",
        ":1..2",
    ):
        kept, problem = read_ranges([word], axes)

        assert kept == [], word
        assert word in problem


def test_the_page_weighs_all_runs_and_lists_what_is_kept(alice_client, group):
    whole = get(alice_client, f"?sweep={group.pk}")

    assert whole.context["sweep"].weighed.num_runs == 12
    bars = figures(whole)["importance"]["data"][0]
    assert bars["y"] == ["Learning rate", "Aggregation", "Residual"]
    assert bars["x"][0] > 95
    assert bars["x"][1] < 2
    assert len(figures(whole)["parallel"]["data"]) == 12
    # Two settings are shown by the scatter alone.
    assert 'data-figure="scatter"' in whole.text
    assert 'data-figure="parallel"' not in whole.text
    assert 'data-figure="importance"' not in whole.text
    axis = figures(whole)["scatter"]["layout"]["xaxis"]
    assert (axis["title"]["text"], axis["type"]) == ("Learning rate", "log")

    keep = ["outcome:0.7..1", "optim.learning_rate:1e-5..1"]
    some = get(alice_client, f"?{urlencode({'group': group.pk, 'keep': keep}, True)}")

    assert some.context["sweep"].num_kept == some.text.count("data-run=") == 4
    assert some.context["sweep"].weighed.num_runs == 12
    drawn = figures(some)["parallel"]["data"]
    assert sum(line["meta"]["isKept"] for line in drawn) == 4
    assert len(some.context["kept"]) == 2

    typed = {"keep_axis": "loss.aggregation", "keep_from": "0", "keep_to": "0"}
    typed_in = get(alice_client, f"?{urlencode({'group': group.pk, **typed})}")

    assert typed_in.context["sweep"].num_kept == 6
    assert 'value="loss.aggregation:0..0">' in typed_in.text
    (chip,) = typed_in.context["kept"]
    assert "sequence_mean_token_mean" in chip["words"]

    less = get(alice_client, f"?sweep={group.pk}&without=optim.learning_rate")

    sweep = less.context["sweep"]
    assert (len(sweep.settings), len(sweep.all_settings)) == (1, 2)
    bars = figures(less)["importance"]["data"][0]
    assert bars["y"] == ["Aggregation", "Residual"]

    other = get(alice_client, f"?sweep={group.pk}&keep=loss.kl_coef:0..1")

    assert "loss.kl_coef" in other.context["sweep"].problem
    assert other.context["sweep"].num_kept == 12


def test_runs_without_an_outcome_are_counted(alice_client, group):
    runs = runs_of(group)
    few = ",".join(str(run.pk) for run in runs[::3])

    four = get(alice_client, f"?runs={few}")
    alike = get(alice_client, f"?runs={runs[0].pk},{runs[1].pk}")
    none = get(alice_client, "")
    Run.objects.filter(pk=runs[0].pk).update(summary={}, name="<b>x</b>")
    eleven = get(alice_client, f"?sweep={group.pk}")

    assert re.findall(r"\d", four.context["sweep"].weighed.problem)[-1] == "4"
    assert "parallel" in figures(four)
    assert alike.context["sweep"].all_settings == []
    assert not figures(alike)
    assert "/alpha/runs/" in none.text
    assert not none.context["selection"].runs
    assert eleven.context["sweep"].num_without == 1
    assert eleven.context["sweep"].weighed.num_runs == 11
    names = {line["name"] for line in figures(eleven)["parallel"]["data"]}
    assert not any("<" in name for name in names)


def test_runs_of_another_team_are_not_found(charlie_client, group):
    run = runs_of(group)[0]

    get(charlie_client, f"?runs={run.pk}", "other", status=404)
    get(charlie_client, f"?sweep={group.pk}", "other", status=404)
    get(charlie_client, f"?sweep={group.pk}", status=404)
