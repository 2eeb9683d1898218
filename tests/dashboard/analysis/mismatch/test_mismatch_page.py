"""The page of the gap between sampler and trainer."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from django.urls import reverse

from tests.dashboard.analysis.mismatch.seeded import (
    measured,
    sampled,
    store_gaps,
    store_tokens,
)
from tests.dashboard.completions.factories import make_config, make_group, make_run


@pytest.fixture
def run(team):
    run = make_run(team, config=make_config(loss={"importance_cap": 4.0}), last_step=3)
    rng = np.random.default_rng(0)
    for step in (1, 2, 3):
        group = make_group(run, step, prompt_index=5)
        gaps, sampling = rng.normal(0, 0.3, (4, 300)), sampled(rng, 4, 300) - 1.5
        store_gaps(run, step, gaps, sampling=sampling, age=1, prompts=[5], sizes=[4])
        if step < 3:
            store_tokens(
                group,
                [
                    measured(gap=d, sampling=mu, advantage=a)
                    for d, mu, a in zip(gaps, sampling, [-1, 1, -1, 1], strict=True)
                ],
            )
    return run


def get(client, run, query="", status=200):
    response = client.get(reverse("run_mismatch", args=["alpha", run.pk]) + query)
    assert response.status_code == status
    return response


def figures_of(response):
    text = response.content.decode()
    found = re.search(r'<script id="mismatch-figures"[^>]*>(.*?)</script>', text)
    return json.loads(found[1])


def test_the_newest_step_with_token_values_is_shown_first(run, alice_client):
    response = get(alice_client, run)

    lab = response.context["lab"]
    assert (lab.step, lab.stored_step) == (2, 2)
    assert lab.advice.kind == "stale"
    assert b'data-kind="stale"' in response.content
    shown = re.findall(r'data-shown="([^"]+)"', response.content.decode())
    assert shown[:3] == ["mean |d|", "95th percentile of |Σd|", "KL"]
    assert len(shown) == len(set(shown)) == 5
    assert response.context["rows"][0][0].key == "today"
    assert set(figures_of(response)) == {
        "steps",
        "positions",
        "probabilities",
        "completions",
    }


def test_a_step_without_token_values_has_those_before_it(run, alice_client):
    lab = get(alice_client, run, "?step=3").context["lab"]

    assert (lab.step, lab.stored_step) == (3, 2)


@pytest.mark.parametrize(("asked", "shown"), [(0, 1), (99, 3)])
def test_a_step_that_was_not_measured_gives_the_nearest(
    run, alice_client, asked, shown
):
    assert get(alice_client, run, f"?step={asked}").context["lab"].step == shown


def test_charts_have_the_gap_by_step_and_of_completions(run, alice_client):
    figures = figures_of(get(alice_client, run, "?step=1&importance_cap=2"))

    by_name = {trace["name"]: trace for trace in figures["steps"]["data"]}
    assert by_name["mean |d|"]["x"] == [1, 2, 3]
    assert by_name["mean |d|"]["y"][0] == pytest.approx(0.24, abs=0.02)
    assert by_name["age"]["y"] == [1, 1, 1]
    points = figures["completions"]["data"]
    assert [len(trace["x"]) for trace in points[:2]] == [2, 2]
    assert points[0]["customdata"] == [[5, 1], [5, 3]]
    assert points[2]["y"] == pytest.approx([np.log(2)] * 2, rel=1e-3)
    quarters = [trace["name"] for trace in figures["positions"]["data"]]
    assert quarters == [f"step {step}" for step in (1, 2, 3) for _ in range(2)]


def test_own_bounds_are_a_row_that_a_launch_takes_over(run, alice_client):
    query = "?importance_correction=token_mask&importance_cap=6&importance_floor=0.4"
    response = get(alice_client, run, query)

    [(row, url)] = [(r, u) for r, u in response.context["rows"] if r.key == "own"]
    assert row.settings["loss.importance_cap"] == 6
    assert parse_qs(urlsplit(url).query) == {
        "clone": [str(run.pk)],
        "loss.importance_correction": ["token_mask"],
        "loss.importance_cap": ["6.0"],
        "loss.importance_floor": ["0.4"],
    }
    form = alice_client.get(url).context["form"]
    assert form.texts["loss.importance_correction"] == "token_mask"
    assert float(form.texts["loss.importance_floor"]) == 0.4
    assert form.start.run == run


@pytest.mark.parametrize(
    "query",
    ["importance_floor=3", "geometric_mask=-1", "importance_correction=x", "step=x"],
)
def test_bounds_that_the_loss_refuses_are_reported(run, alice_client, query):
    response = get(alice_client, run, f"?{query}")

    assert response.context["form"].errors
    assert all(row.key != "own" for row, _ in response.context["rows"])


def test_a_region_is_launched_with_its_surrogate(run, alice_client):
    urls = {row.key: url for row, url in get(alice_client, run).context["rows"]}

    query = parse_qs(urlsplit(urls["dppo-tv"]).query)
    assert query["loss.surrogate"] == ["dppo_tv"]
    assert query["loss.old_logprobs"] == ["sampling"]
    assert urls["today"] == ""
    launched = alice_client.get(urls["dppo-tv"]).context["form"]
    assert {setting.path for setting in launched.changed} == {
        "loss.surrogate",
        "loss.old_logprobs",
        "loss.importance_cap",
    }


def test_the_advised_mask_leaves_the_correction_of_a_stale_run(run, alice_client):
    run.config = make_config(
        loss={"importance_correction": "token_truncate"},
        rollout={"one_step_off": True},
    )
    run.save()

    context = get(alice_client, run).context

    query = parse_qs(urlsplit(context["advised_url"]).query)
    assert query.keys() == {"clone", "loss.off_policy_mask"}
    title = context["lab"].advice.candidate.title
    bound = query["loss.off_policy_mask"][0]
    assert context["elsewhere"][title] == (
        [f"off_policy_mask_threshold={float(bound):g}"],
        [],
        [],
    )


def test_a_step_without_measured_tokens_has_a_verdict_alone(team, alice_client):
    run = make_run(team)
    store_gaps(run, 1, np.zeros((4, 0)), incomparable="temperature")

    response = get(alice_client, run)

    assert response.context["lab"].advice.kind == "incomparable"
    assert b"data-shown" not in response.content
    assert b"data-key" not in response.content


def test_options_of_other_trainers_stand_beside_corrections(run, alice_client):
    query = "?importance_correction=token_truncate&importance_floor=0.4"
    elsewhere = get(alice_client, run, query).context["elsewhere"]

    trl, verl, prime_rl = elsewhere["IcePop, 0.5 to 5"]
    assert trl == [
        'vllm_importance_sampling_mode="token_mask"',
        "vllm_importance_sampling_clip_max=5",
        "vllm_importance_sampling_clip_min=0.5",
    ]
    assert verl == [
        "algorithm.rollout_correction.rollout_is=token",
        'algorithm.rollout_correction.rollout_is_threshold="0.5_5"',
    ]
    assert prime_rl == []
    trl, verl, prime_rl = elsewhere["Own bounds"]
    assert (len(trl), verl) == (3, [])  # verl clamps from above alone
    assert elsewhere["Geometric mask, 0.01 nats"][1][-1].endswith("=1.0100502")
    assert elsewhere["DPPO, TV 0.2"][:2] == ([], [])
    assert "trainer.loss.dppo_mask_low = 0.2" in elsewhere["DPPO, TV 0.2"][2]
    assert elsewhere["Off-policy mask, 0.5 nats"][0][-1].endswith("_threshold=0.5")


def test_shares_are_split_by_length_and_sign(run, alice_client):
    response = get(alice_client, run, "?share=changed")

    splits = dict(response.context["splits"])
    assert splits["Token truncation at 2"][4:] == pytest.approx([1, 1], abs=0.02)
    assert splits["No correction"] == [0.0] * 6


def test_a_run_without_the_event_says_why(team, alice_client):
    ours = make_run(team)
    off = make_run(team, "off", config=make_config(logging={"mismatch": False}))
    reported = make_run(team, "theirs", source={"kind": "sdk", "tools": ["TRL"]})

    reasons = {get(alice_client, run).context["why"] for run in (ours, off, reported)}

    assert len(reasons) == 3


def test_a_page_makes_few_queries(run, alice_client, django_assert_max_num_queries):
    get(alice_client, run)

    with django_assert_max_num_queries(20):
        get(alice_client, run)


def test_tokens_have_their_gap_and_the_weights_of_a_correction(team, alice_client):
    run = make_run(team)
    group = make_group(run, 1, prompt_index=5)
    gap = [0.0, np.log(4), np.log(6)]
    store_tokens(group, [measured(gap=gap, sampling=[-2.0, -3.0, -4.0])] * 4)
    address = reverse("group_tokens", args=["alpha", run.pk, 1, 5])

    def weights(query):
        completions = alice_client.get(address + query).json()["completions"]
        assert completions[3]["gap"] == pytest.approx(gap, abs=1e-3)
        return completions[3]["weight"]

    assert weights("") == pytest.approx([1, 4, 0], rel=1e-3)
    assert weights("?correction=tis-2") == pytest.approx([1, 2, 2])
    assert weights("?correction=unknown") == weights("")


def test_a_group_is_coloured_by_a_chosen_correction(run, alice_client):
    address = reverse("group", args=["alpha", run.pk, 1, 5])
    query = "?view=tokens&color=weight&correction=tis-2"

    response = alice_client.get(address + query)

    text = response.content.decode()
    assert 'data-color="weight"' in text
    assert "tokens.json?correction=tis-2" in text
    names = [field.name for field, _ in response.context["view"].selects]
    assert names == ["color", "correction"]
    plain = alice_client.get(f"{address}?view=tokens")
    assert [f.name for f, _ in plain.context["view"].selects] == ["color"]
