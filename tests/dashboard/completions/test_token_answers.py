"""The token values of a group, as a page requests them."""

import gzip
import json
from typing import Any

import pytest
from django.urls import reverse

from dashboard.completions.models import Group, GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_config, make_group, make_run
from tests.dashboard.supervision.logs import measured


def keep(group: Group, *pieces: str, **values: Any) -> None:
    GroupTokens.objects.create(
        group=group, packed=pack_tokens([measured(*pieces, **values)])
    )


def address(run: Run, step: int = 4, slug: str = "alpha") -> str:
    return reverse("group_tokens", args=[slug, run.pk, step, 9])


def test_it_is_below_the_groups_page(run):
    assert address(run) == f"/alpha/runs/{run.pk}/groups/4/9/tokens.json"


def test_a_member_gets_each_completions_lists(bob_client, run):
    keep(make_group(run, step=4, prompt_index=9), "yes", "<eos>", clipped=[-1, 2])

    answer = bob_client.get(address(run))

    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {
        "completions": [
            {
                "position": 0,
                "ids": [100, 101],
                "pieces": ["yes", "<eos>"],
                "special": [0, 1],
                "logprob": [-0.12345, -1.1235],
                "old_logprob": None,
                "sampling_logprob": [-0.25, -0.25],
                "teacher_logprob": None,
                "entropy": [0.5, 0.5],
                "kl": None,
                "ratio": [1.0231, 1.0231],
                "clipped": [-1, 2],
                "advantage": [1.25, 1.25],
                "coefficient": [1.2789, 1.2789],
                "gap": [0.1037, -0.8963],
                "weight": [1.109, 0.0],  # of IcePop
            }
        ]
    }


def test_it_is_compressed_if_accepted(bob_client, run):
    keep(make_group(run, step=4, prompt_index=9), *["yes"] * 500)

    plain = bob_client.get(address(run))
    packed = bob_client.get(address(run), headers={"Accept-Encoding": "gzip, br"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert packed.headers["Vary"] == plain.headers["Vary"]
    assert len(packed.content) < len(plain.content) / 4
    assert json.loads(gzip.decompress(packed.content)) == plain.json()


@pytest.mark.parametrize("slug", ["alpha", "other"])
def test_a_stranger_gets_404(charlie_client, run, slug):
    keep(make_group(run, step=4, prompt_index=9), "yes")

    assert charlie_client.get(address(run, slug=slug)).status_code == 404


def test_a_missing_group_is_404(bob_client, run):
    assert bob_client.get(address(run)).status_code == 404


def test_the_current_groups_values_are_shown(bob_client, run):
    keep(make_group(run, step=4, prompt_index=9, superseded_by=2), "old")
    keep(make_group(run, step=4, prompt_index=9, attempt=2), "new")

    assert bob_client.get(address(run)).json()["completions"][0]["pieces"] == ["new"]


def test_a_group_without_token_values_says_which_groups_have_some(bob_client, team):
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({}, ("2 groups", "10th step")),
        (
            {"logging": {"token_groups": 1, "tokens_every_steps": 1}},
            ("1 group", "every step"),
        ),
        ({"logging": {"token_groups": 0}}, ("is 0",)),
    ]
    for parts, fragments in cases:
        run = make_run(team, config=make_config(**parts))
        make_group(run, step=4, prompt_index=9)

        answer = bob_client.get(address(run))

        assert answer.status_code == 404
        (error,) = answer.json().values()
        assert "logging.token_groups" in error
        for fragment in fragments:
            assert fragment in error


def test_the_nearest_group_with_token_values_is_one_click_away(bob_client, run):
    keep(make_group(run, step=100, prompt_index=171), "a")
    keep(make_group(run, step=90, prompt_index=9), "b")
    make_group(run, step=97, prompt_index=9)

    page = bob_client.get(f"/alpha/runs/{run.pk}/groups/97/9/?view=tokens")

    html = page.content.decode()
    link = html.partition("data-near-tokens")[0].rpartition("<a")[2]
    assert "/groups/100/171/" in link
    assert "view=tokens" in link
    assert 'data-view="tokens"' in html


def test_a_run_without_token_settings_is_supported(bob_client, team):
    config = make_config()
    config["logging"] = {"groups_every_steps": 1}
    run = make_run(team, config=config)
    make_group(run, step=4, prompt_index=9)

    answer = bob_client.get(address(run))

    assert answer.status_code == 404
    assert answer.json()["error"]


def test_two_queries_plus_guards_are_enough(
    bob_client, run, django_assert_max_num_queries
):
    keep(make_group(run, step=4, prompt_index=9), "yes")

    with django_assert_max_num_queries(7):
        bob_client.get(address(run))
