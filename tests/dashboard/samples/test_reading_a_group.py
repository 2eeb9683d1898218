"""A group's completions as text, rendered or by tokens; the address says how."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.samples.factories import make_group, make_run

LINK = re.compile(r'href="([^"]*/groups/\d+/\d+/[^"]*)"')


@pytest.fixture
def run(team: Team) -> Run:
    return make_run(team)


def get(client: Client, run: Run, query: str) -> str:
    response = client.get(f"/alpha/runs/{run.pk}/groups/5/4/{query}")
    assert response.status_code == 200
    return re.sub(r"\s+", " ", response.content.decode())


def test_markdown_is_rendered_on_request(alice_client: Client, run: Run) -> None:
    make_group(run, step=5, prompt_index=4, texts=["**so**", "so"], rewards=(1.2, 0))

    assert "<strong>so</strong>" in get(alice_client, run, "?view=rendered")
    assert "**so**" in get(alice_client, run, "")


def test_other_groups_are_read_in_the_same_way(alice_client: Client, run: Run) -> None:
    for step, prompt in ((3, 4), (5, 4), (9, 4), (5, 3), (5, 6)):
        make_group(run, step=step, prompt_index=prompt)

    html = get(alice_client, run, "?view=rendered&layout=stacked&sort=-reward&diff=on")

    links = [link.replace("&amp;", "&") for link in LINK.findall(html)]
    moves = [link for link in links if "?" in link]
    assert {re.sub(r".*/groups/|\?.*", "", link) for link in moves} == {
        "3/4/", "5/4/", "9/4/", "5/3/", "5/6/",
    }  # fmt: skip
    wanted = "?view=rendered&layout=stacked&sort=-reward&diff=on"
    assert {link[link.index("?") :] for link in moves} == {wanted}


def test_a_plain_group_has_plain_links(alice_client: Client, run: Run) -> None:
    for step in (3, 5):
        make_group(run, step=step, prompt_index=4)

    links = LINK.findall(get(alice_client, run, "?view=text&sort=position"))

    assert links
    assert not any("?" in link for link in links)


def test_the_others_are_compared_with_the_first_of_the_best(
    alice_client: Client, run: Run
) -> None:
    make_group(
        run, step=5, prompt_index=4, texts=["a", "b", "c"], rewards=(0.2, 1.2, 1.2)
    )

    html = get(alice_client, run, "?diff=on")

    assert html.count('data-diff-with="text-1"') == 2
    assert html.count('data-diff-name="completion 2"') == 2
    assert html.count("The others are compared with this one.") == 1
    assert "data-diff-with" not in get(alice_client, run, "")
    assert "data-diff-with" not in get(alice_client, run, "?diff=on&view=rendered")


def test_where_none_is_best_the_first_is_compared_with(
    alice_client: Client, run: Run
) -> None:
    make_group(run, step=5, prompt_index=4, texts=["a", "b"], rewards=(0.2, 0.2))

    assert 'data-diff-with="text-0"' in get(alice_client, run, "?diff=on")


@pytest.mark.parametrize("query", ["?view=x", "?layout=x&diff=x&color=x&sort=x"])
def test_what_is_not_offered_is_left_out(
    alice_client: Client, run: Run, query: str
) -> None:
    make_group(run, step=5, prompt_index=4)

    assert 'id="completion-0"' in get(alice_client, run, query)
