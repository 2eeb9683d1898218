"""The page of a sweep: axes, stretches that are kept, weights and the table."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts.models import Team
from dashboard.insights.sweeps.axes import Axis, Kept, is_kept, read_kept
from dashboard.insights.sweeps.outcomes import read_outcomes
from dashboard.insights.sweeps.settings import design, swept_settings
from dashboard.runs.models import Evaluation, Run, RunGroup
from tests.dashboard.samples.factories import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
    make_steps,
)

pytestmark = pytest.mark.django_db
RATES = (1e-6, 1e-5, 1e-4)


def get(client: Client, query: str, slug: str = "alpha", status: int = 200) -> str:
    response = client.get(reverse("sweep", args=[slug]) + query)
    assert response.status_code == status
    return re.sub(r"\s+", " ", response.content.decode())


def figures(html: str) -> dict[str, Any]:
    match = re.search(
        r'id="sweep-figures" type="application/json">(.*?)</script>', html
    )
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


@pytest.fixture
def group(team: Team) -> RunGroup:
    """Three learning rates, two aggregations, two seeds; the rate decides."""
    group = RunGroup.objects.create(team=team, name="rates")
    version, recipe = make_dataset(team), make_recipe(team)
    for i, rate in enumerate(RATES):
        for aggregation in ("token_mean", "sequence_mean_token_mean"):
            for seed in (0, 1):
                run = make_run(
                    team,
                    f"rates-{rate}-{aggregation}-{seed}",
                    group=group,
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


def runs_of(group: RunGroup) -> list[Run]:
    return list(
        group.runs.order_by("pk").select_related(
            "dataset_version__dataset", "recipe_version__recipe"
        )
    )


def test_settings_are_those_that_differ_but_the_seed(group: RunGroup) -> None:
    found = {one.key: one for one in swept_settings(runs_of(group))}

    assert found.keys() == {"optim.learning_rate", "loss.aggregation"}
    assert found["optim.learning_rate"].values == ["1e-6", "1e-5", "0.0001"]
    assert found["optim.learning_rate"].is_log
    assert found["loss.aggregation"].numbers is None


def test_settings_that_always_go_together_are_one(team: Team) -> None:
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


@pytest.mark.parametrize(
    ("kind", "value"),
    [("last", 0.8), ("tail", 0.75), ("highest", 0.8), ("lowest", 0.0)],
)
def test_an_outcome_is_taken_of_all_stored_steps(
    group: RunGroup, kind: str, value: float
) -> None:
    runs = runs_of(group)

    found = read_outcomes(runs, "reward/mean", kind)

    assert found[runs[8].pk] == pytest.approx(value)


@pytest.mark.parametrize("kind", ["last", "tail", "highest", "lowest"])
def test_what_is_no_number_is_no_outcome(team: Team, kind: str) -> None:
    run = make_run(team, last_step=2)
    make_steps(run, {"loss": [float("nan"), float("inf")]})
    run.summary = {"last": {"loss": float("inf")}}

    assert read_outcomes([run], "loss", kind) == {run.pk: None}


def test_a_step_that_a_resume_went_back_before_does_not_count(team: Team) -> None:
    run = make_run(team, last_step=2)
    make_steps(run, {"reward/mean": [0.1, 0.2]})
    run.steps.filter(step=2).update(superseded_by=2)

    assert read_outcomes([run], "reward/mean", "highest") == {run.pk: 0.1}


@pytest.mark.parametrize(
    ("kind", "value"), [("last", 0.5), ("tail", 0.5), ("highest", 0.9), ("lowest", 0.1)]
)
def test_an_evaluation_is_an_outcome_too(team: Team, kind: str, value: float) -> None:
    run = make_run(team, last_step=20)
    for step, mean in [(5, 0.9), (10, 0.1), (20, 0.5), (25, None)]:
        Evaluation.objects.create(
            run=run,
            step=step,
            name="held",
            epoch=1,
            seq=step,
            time=datetime(2026, 3, 1, tzinfo=UTC),
            metrics={"eval/held/mean": mean},
        )

    assert read_outcomes([run], "eval/held/mean", kind) == {run.pk: value}


def test_a_number_of_four_values_has_a_curve_and_with_few_runs_a_line(
    team: Team,
) -> None:
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
    assert "take at least 5 runs to be weighed; 4 have" in design(settings, 4).problem


def test_stretches_keep_what_lies_on_their_ends(group: RunGroup) -> None:
    settings = swept_settings(runs_of(group))
    axes = [Axis.of(one) for one in settings]

    kept, problem = read_kept(
        ["optim.learning_rate:1e-5..1e-4", "loss.aggregation:0..0"], axes
    )

    assert problem == ""
    assert kept[0] == Kept(key="optim.learning_rate", low=1e-5, high=1e-4)
    assert str(kept[0]) == "optim.learning_rate:1e-5..0.0001"
    inside = is_kept(axes, kept, 12)
    assert [i for i, one in enumerate(inside) if one] == [6, 7, 10, 11]


@pytest.mark.parametrize(
    "word",
    [
        "optim.learning_rate",
        "optim.learning_rate:1..",
        "optim.learning_rate:a..b",
        "optim.learning_rate:1e9999..2",
        ":1..2",
    ],
)
def test_a_stretch_that_cannot_be_read_is_named(group: RunGroup, word: str) -> None:
    axes = [Axis.of(one) for one in swept_settings(runs_of(group))]

    kept, problem = read_kept([word], axes)

    assert kept == []
    assert "All runs are shown." in problem


def test_a_stretch_of_another_setting_is_named(
    alice_client: Client, group: RunGroup
) -> None:
    html = get(alice_client, f"?group={group.pk}&keep=loss.kl_coef:0..1")

    assert "These runs do not differ in &#x27;loss.kl_coef&#x27;." in html


def test_the_page_tells_what_the_outcome_goes_with(
    alice_client: Client, group: RunGroup
) -> None:
    html = get(alice_client, f"?group={group.pk}")

    assert "Sweep: rates" in html
    assert "variance of the outcome between 12 runs" in html
    drawn = figures(html)
    assert drawn["importance"]["data"][0]["y"] == [
        "optim.learning_rate",
        "loss.aggregation",
        "all else",
    ]
    assert drawn["importance"]["data"][0]["x"][0] > 95
    assert drawn["importance"]["data"][0]["x"][1] < 2
    assert len(drawn["parallel"]["data"]) == 12
    assert drawn["scatter"]["layout"]["xaxis"]["title"]["text"] == "optim.learning_rate"
    assert drawn["scatter"]["layout"]["xaxis"]["type"] == "log"


def test_only_kept_runs_are_in_the_table_and_all_are_weighed(
    alice_client: Client, group: RunGroup
) -> None:
    query = urlencode(
        {
            "group": str(group.pk),
            "keep": ["outcome:0.7..1", "optim.learning_rate:1e-5..1"],
        },
        doseq=True,
    )

    html = get(alice_client, f"?{query}")

    assert "4 of 12 runs are kept" in html
    assert html.count("data-run=") == 4
    assert "between 12 runs" in html
    kept = [t for t in figures(html)["parallel"]["data"] if t["meta"]["isKept"]]
    assert len(kept) == 4
    assert "outcome from 0.7 to 1" in html


def test_a_stretch_that_was_typed_becomes_one_of_the_address(
    alice_client: Client, group: RunGroup
) -> None:
    query = urlencode(
        {
            "group": str(group.pk),
            "keep_axis": "loss.aggregation",
            "keep_from": "0",
            "keep_to": "0",
        }
    )

    html = get(alice_client, f"?{query}")

    assert "6 of 12 runs are kept" in html
    assert 'name="keep" value="loss.aggregation:0..0"' in html
    assert "loss.aggregation: sequence_mean_token_mean" in html


def test_a_setting_is_left_out(alice_client: Client, group: RunGroup) -> None:
    html = get(alice_client, f"?group={group.pk}&without=optim.learning_rate")

    assert "1 of 2 settings that differ are shown" in html
    assert figures(html)["importance"]["data"][0]["y"] == [
        "loss.aggregation",
        "all else",
    ]


def test_runs_without_an_outcome_are_counted(
    alice_client: Client, group: RunGroup
) -> None:
    first = group.runs.order_by("pk").first()
    assert first
    Run.objects.filter(pk=first.pk).update(summary={})

    html = get(alice_client, f"?group={group.pk}")

    assert "1 of 12 runs has no value of reward/mean (yet)" in html
    assert "between 11 runs" in html


def test_too_few_runs_say_how_many_are_needed(
    alice_client: Client, group: RunGroup
) -> None:
    few = ",".join(str(run.pk) for run in runs_of(group)[::3])

    html = get(alice_client, f"?runs={few}")

    assert "runs to be weighed; 4 have a value here" in html
    assert "parallel" in figures(html)


def test_runs_that_differ_in_nothing_say_so(
    alice_client: Client, group: RunGroup
) -> None:
    first, second = runs_of(group)[:2]

    html = get(alice_client, f"?runs={first.pk},{second.pk}")

    assert "These runs differ in no setting but their seed." in html


def test_no_runs_say_where_to_choose_them(alice_client: Client, team: Team) -> None:
    assert "No runs are chosen" in get(alice_client, "")


def test_names_are_not_read_as_html(alice_client: Client, group: RunGroup) -> None:
    Run.objects.filter(group=group).update(name="<b>x</b>")

    drawn = figures(get(alice_client, f"?group={group.pk}"))

    assert drawn["parallel"]["data"][0]["name"] == "&lt;b&gt;x&lt;/b&gt;"


def test_runs_of_another_team_are_not_found(
    charlie_client: Client, group: RunGroup
) -> None:
    run = runs_of(group)[0]

    get(charlie_client, f"?runs={run.pk}", "other", status=404)
    get(charlie_client, f"?group={group.pk}", "other", status=404)
    get(charlie_client, f"?group={group.pk}", status=404)
