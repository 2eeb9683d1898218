"""The compare page: who is compared, by which numbers, over which curves."""

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from dashboard.accounts.models import Team
from dashboard.runs.charts.downsampling import make_summaries
from dashboard.runs.models import Run, Sweep
from tests.dashboard.completions.factories import (
    make_config,
    make_evaluation,
    make_group,
    make_run,
    make_steps,
)


def get_page(client: Client, query: str = "", slug: str = "alpha") -> Any:
    """With one metric at length."""
    if query and "metric=" not in query:
        query += "&metric=reward/mean"
    response = client.get(reverse("compare", args=[slug]) + query)
    assert response.status_code == 200
    return response


def get(client: Client, query: str = "", slug: str = "alpha") -> str:
    return re.sub(r"\s+", " ", get_page(client, query, slug).text)


def figure(html: str) -> dict[str, Any]:
    match = re.search(
        r'id="compare-figure" type="application/json">(.*?)</script>', html
    )
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


def lines(html: str) -> dict[str, dict[str, Any]]:
    return {t["name"]: t for t in figure(html)["data"] if "meta" in t}


def evaluate(run: Run, step: int, mean: float, **fields: Any) -> None:
    make_evaluation(run, step, {"eval/heldout/mean": mean}, **fields)
    make_summaries(run.pk)


@pytest.fixture(scope="module")
def first(shared_team) -> Run:
    run = make_run(
        shared_team,
        "first",
        summary={"last": {"reward/mean": 0.5}, "best": {"reward/mean": 0.8}},
    )
    make_steps(run, {"reward/mean": [0.0, 1.0, 0.5], "loss": [3.0, 2.0, 1.0]})
    return run


@pytest.fixture(scope="module")
def second(shared_team) -> Run:
    run = make_run(
        shared_team,
        "second",
        summary={"last": {"reward/mean": 0.75}, "best": {"reward/mean": 0.75}},
    )
    make_steps(run, {"loss": [9.0] * 5, "reward/mean": [0.2, None, 0.4, 0.6, 0.8]})
    return run


def test_the_page_offers_runs_but_no_other_teams(alice_client, charlie, first, second):
    make_run(Team.objects.get(slug="other"), "stranger")
    html = get(alice_client)

    assert f'href="?runs={first.pk}"' in html
    assert "stranger" not in html
    # The search offers only matching runs that are not yet chosen.
    make_run(first.team, "thirteenth")
    html = get(alice_client, f"?runs={first.pk}&q=SEC")
    assert f'href="?runs={first.pk}%2C{second.pk}&amp;q=SEC' in html
    assert "thirteenth" not in html


def test_each_run_is_drawn_at_its_own_steps(alice_client, first, second, team):
    both = f"?runs={first.pk},{second.pk}"
    drawn = lines(get(alice_client, f"{both}&smooth=0"))

    assert drawn["first"]["x"] == [1, 2, 3]
    assert drawn["first"]["y"] == [0.0, 1.0, 0.5]
    assert drawn["second"]["x"] == [1, 3, 4, 5]
    assert drawn["second"]["y"] == [0.2, 0.4, 0.6, 0.8]

    # The run list's ticked boxes choose runs, too.
    boxes = lines(get(alice_client, f"?runs={second.pk}&runs={first.pk}"))
    assert list(boxes) == ["second", "first"]
    # Wall time counts from each run's own first step.
    timed = lines(get(alice_client, f"?runs={first.pk}&x=time"))
    assert timed["first"]["x"] == pytest.approx([0, 1 / 6, 2 / 6], abs=1e-3)
    # A run keeps its colour whatever it is compared with.
    third = make_run(team, "third")
    others = lines(get(alice_client, f"?runs={third.pk},{second.pk}"))
    assert drawn["second"]["line"]["color"] == others["second"]["line"]["color"]
    assert drawn["first"]["line"]["color"] != drawn["second"]["line"]["color"]


def test_the_metric_in_the_address_is_drawn(alice_client, first, second):
    both = f"?runs={first.pk},{second.pk}"
    html = get(alice_client, f"{both}&metric=loss&smooth=0")
    absent = lines(get(alice_client, f"{both}&metric=kl/mean"))
    queued = make_run(first.team, name="queued", state="queued")

    assert lines(html)["first"]["y"] == [3.0, 2.0, 1.0]
    assert '<option value="loss" selected>' in html
    assert [line["x"] for line in absent.values()] == [[], []]
    # Also of runs that have no value yet.
    of_none = get(alice_client, f"?runs={queued.pk}")
    assert '<option value="reward/mean" selected>' in of_none


def test_completions_sampled_follow_from_the_configuration(alice_client, team):
    rollout = {"prompts_per_step": 3, "group_size": 5}
    run = make_run(team, config=make_config(rollout=rollout))
    make_steps(run, {"reward/mean": [0.1, 0.2]})

    html = get(alice_client, f"?runs={run.pk}&x=samples")

    assert lines(html)[run.name]["x"] == [15, 30]


def test_held_out_scores_are_drawn_and_superseded_ones_are_not(alice_client, first):
    evaluate(first, 0, 0.1)
    evaluate(first, 20, 0.4, superseded_by=2)
    evaluate(first, 20, 0.3)

    query = f"?runs={first.pk}&metric=eval/heldout/mean&smooth=0"
    html = get(alice_client, query)

    assert lines(html)["first"]["x"] == [0, 20]
    assert lines(html)["first"]["y"] == [0.1, 0.3]


def test_smoothing_leaves_the_measured_line_behind_the_smoothed_one(
    alice_client, first
):
    raw, smoothed = figure(get(alice_client, f"?runs={first.pk}&smooth=0.5"))["data"]

    assert raw["y"] == [0.0, 1.0, 0.5]
    # (0.5·1) / (0.5 + 0.25), then (0.5·0.5 + 0.25·1) / (0.5 + 0.25 + 0.125)
    assert smoothed["y"] == pytest.approx([0, 0.5 / 0.75, 0.5 / 0.875], rel=1e-5)
    assert smoothed["text"] == raw["y"]  # on hover, before the smoothed value
    own, drawn = smoothed["hovertemplate"].split("<br>")
    assert ("%{text" in own, "%{y" in drawn) == (True, True)


def test_deltas_are_to_the_first_run(alice_client, first, second):
    evaluate(first, 20, 0.4)
    evaluate(second, 10, 0.9)
    evaluate(second, 20, 0.5)

    html = get(alice_client, f"?runs={first.pk},{second.pk}")

    table = html.split('id="numbers"')[1]
    deltas = re.findall(r'data-direction="(\w+)">([^<]+)<', table)
    assert deltas == [
        ("same", "+0.25"),  # last reward; of one run each nothing is better
        ("same", "−0.05"),  # best reward
        ("same", "+0.1"),  # last held-out
        ("same", "+0.5"),  # best held-out
    ]


def test_at_most_ten_runs_are_compared(alice_client, team):
    runs = [make_run(team, f"run-{i}") for i in range(12)]

    page = get_page(alice_client, "?runs=" + ",".join(str(r.pk) for r in runs))

    assert page.context["selection"].num_chosen == 12
    assert page.text.count('type="checkbox" name="runs"') == 12
    assert len(lines(page.text)) == 10


def test_the_figure_is_served_alone(alice_client, first):
    url = reverse("compare_figure", args=["alpha"])

    response = alice_client.get(url, {"runs": str(first.pk), "smooth": "0"})

    assert response.json()["data"][0]["y"] == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("name", ["compare", "compare_figure"])
def test_another_teams_run_is_404(alice_client, charlie_client, first, name):
    foreign = make_run(Team.objects.get(slug="other"), "stranger")

    for slug, ids in [("alpha", f"{first.pk},{foreign.pk}"), ("other", "1")]:
        url = reverse(name, args=[slug]) + f"?runs={ids}"
        assert alice_client.get(url).status_code == 404
    own = reverse(name, args=["other"]) + f"?runs={foreign.pk},{first.pk}"
    assert charlie_client.get(own).status_code == 404


def test_invalid_parameters_never_break_the_page(alice_client, first):
    url = reverse("compare", args=["alpha"])

    for ids in ("x", "1.5", "-1", "٣", "9" * 30, "0"):
        assert alice_client.get(url, {"runs": ids}).status_code == 404, ids
    for query in ("smooth=nan", "x=moon", "metric=%00", "q=%00", "prompt=-1"):
        html = get(alice_client, f"?runs={first.pk}&{query}")
        assert "first" in lines(html), query


def test_the_same_prompt_is_found_at_the_nearest_step_of_each_run(
    alice_client, first, second, team
):
    second.dataset_version = first.dataset_version
    second.save()
    other_data = make_run(team, "other-data")
    for step in (2, 9):
        make_group(first, step=step, prompt_index=7)
    make_group(second, step=4, prompt_index=7)
    make_group(second, step=5, prompt_index=7, superseded_by=2)
    make_group(other_data, step=5, prompt_index=7)

    ids = f"{first.pk},{second.pk},{other_data.pk}"
    html = get(alice_client, f"?runs={ids}&prompt=7&step=5")

    for run, step in ((first, 2), (second, 4)):
        url = reverse("group", args=["alpha", run.pk, step, 7])
        assert f'href="{url}"' in html
    assert html.count("/groups/") == 2  # number 7 is another prompt there


def test_ten_runs_cost_few_queries(alice_client, team, django_assert_max_num_queries):
    runs = [make_run(team, f"run-{i}") for i in range(10)]
    for run in runs:
        make_steps(run, {"reward/mean": [0.1, 0.2]})

    # As many as for two runs.
    with django_assert_max_num_queries(19):
        get(alice_client, "?runs=" + ",".join(str(r.pk) for r in runs))


def test_no_name_is_markup_in_a_chart(alice_client, team):
    link = "<a href='https://evil.example'>click</a>"
    run = make_run(team, link)
    query = urlencode({"runs": run.pk, "metric": link})

    html = get(alice_client, f"?{query}")

    assert link not in html
    drawn = figure(html)
    assert drawn["layout"]["yaxis"]["title"]["text"].startswith("&lt;a href")
    assert drawn["data"][-1]["name"].startswith("&lt;a href")


def make_sweep(team: Team, number: int) -> list[Run]:
    group = Sweep.objects.create(team=team, name="seeds")
    runs = []
    for n in range(number):
        config = make_config(seed=n + 1)
        runs.append(make_run(team, f"seeds-{n + 1}", config=config, sweep=group))
    return runs


def test_a_groups_runs_are_compared_by_its_address(alice_client, team, first):
    runs = make_sweep(team, 3)

    page = get_page(alice_client, f"?sweep={runs[0].sweep_id}")

    assert page.context["selection"].sweep == runs[0].sweep
    assert set(page.context["selection"].runs) == set(runs)
    assert "data-choices" not in page.text


def test_runs_of_a_large_group_are_chosen(alice_client, team):
    runs = make_sweep(team, 12)
    group = runs[0].sweep_id

    page = get_page(alice_client, f"?sweep={group}")
    html = page.text
    chosen = get(alice_client, f"?sweep={group}&runs={runs[11].pk}&runs={runs[2].pk}")

    assert (len(page.context["selection"].runs), page.context["selection"].is_cut) == (
        10,
        True,
    )
    assert f'name="runs" value="{runs[9].pk}" checked' in html
    assert f'name="runs" value="{runs[10].pk}" checked' not in html
    # Each is labelled by what differs.
    assert '<span class="mono">seed</span> 12' in html
    compared = re.findall(r'data-run="(\d+)"', chosen)
    assert compared == [str(runs[11].pk), str(runs[2].pk)]
    assert f'name="sweep" value="{group}"' in chosen


def test_another_teams_sweep_is_not_found(charlie_client, alice_client, team):
    (run,) = make_sweep(team, 1)
    other = reverse("compare", args=["other"])
    own = reverse("compare", args=["alpha"])

    assert charlie_client.get(f"{other}?sweep={run.sweep_id}").status_code == 404
    for wrong in ("x", "0", "9" * 30):
        assert alice_client.get(f"{own}?sweep={wrong}").status_code == 404


def test_five_runs_lead_to_their_settings(alice_client, team):
    runs = [make_run(team, f"run-{i}") for i in range(5)]
    ids = ",".join(str(run.pk) for run in runs)

    address = f"/alpha/sweep?runs={ids}"
    assert f'href="{address}"' in get(alice_client, f"?runs={ids}")
    assert alice_client.get(address).status_code == 200
    four = ids.rpartition(",")[0]
    assert "/alpha/sweep" not in get(alice_client, f"?runs={four}")


def test_six_metrics_are_drawn_and_the_address_chooses_others(
    alice_client, first, second
):
    ids = f"{first.pk},{second.pk}"
    url = reverse("compare_charts", args=["alpha"])

    usual = alice_client.get(url, {"runs": ids}).json()["charts"]
    query = {"runs": ids, "pin": ["loss", *(f"m{i}" for i in range(6))]}
    chosen = alice_client.get(url, query).json()["charts"]

    assert [chart["metric"] for chart in usual] == ["reward/mean", "loss"]
    assert [trace["y"] for trace in usual[1]["data"]] == [[3, 2, 1], [9] * 5]
    assert [chart["metric"] for chart in chosen] == [
        "loss",
        "m0",
        "m1",
        "m2",
        "m3",
        "m4",
    ]
    page = get_page(alice_client, f"?runs={ids}&pin=loss")
    assert page.context["pins"] == ["loss"]


def test_a_live_comparison_is_current(alice_client, first, second):
    url, query = reverse("compare_charts", args=["alpha"]), {"runs": f"{first.pk}"}
    assert not alice_client.get(url, query).json()["is_live"]

    Run.objects.filter(pk=first.pk).update(state="paused", finished_at=None)

    assert alice_client.get(url, query).json()["is_live"]


def test_a_single_run_is_offered_the_newest_of_its_dataset(alice_client, first):
    make_run(first.team, "elsewhere")
    alike = [
        make_run(first.team, f"alike-{i}", dataset_version=first.dataset_version)
        for i in range(6)
    ]

    page = get_page(alice_client, f"?runs={first.pk}")

    offered = [run for run, _ in page.context["alike"]]
    assert offered == alike[:0:-1]


def test_a_prompt_that_runs_share_is_open(alice_client, first, second):
    second.dataset_version = first.dataset_version
    second.save()
    for prompt in (3, 4):
        make_group(first, step=2, prompt_index=prompt)
    make_group(second, step=3, prompt_index=4)

    page = get_page(alice_client, f"?runs={first.pk},{second.pk}")

    assert page.context["prompt"] == 4
    steps = [answer.group.step for answer in page.context["answers"]]
    assert steps == [2, 3]
    rewards = [c.reward for c in page.context["answers"][0].completions]
    assert rewards == sorted(rewards, reverse=True)


def test_a_common_prompt_is_found_by_its_text(alice_client, first, second):
    second.dataset_version = first.dataset_version
    second.save()
    for run in (first, second):
        make_group(run, step=2, prompt_index=3, prompt="How many marbles?")
        make_group(run, step=2, prompt_index=4, prompt="How many apples?")
    runs = f"?runs={first.pk},{second.pk}"

    page = get_page(alice_client, f"{runs}&find=MARBLES&prompt=4")

    assert page.context["prompt"] == 3
    assert get_page(alice_client, f"{runs}&find=pears").context["answers"] == []


def test_other_rewards_are_one_setting_that_differs(alice_client, first, second):
    second.config["reward"]["recipe"]["rules"][0]["weight"] = 3.0
    second.save()

    page = get_page(alice_client, f"?runs={first.pk},{second.pk}")

    keys = [setting.key for setting, _ in page.context["differing"]]
    assert "recipe" in keys
    assert not any(key.startswith(("rules.", "recipe.")) for key in keys)
    assert page.context["recipes"]
    everything = get_page(alice_client, f"?runs={first.pk},{second.pk}&settings=all")
    assert any(s.key.startswith("rules.") for s in everything.context["settings"])
