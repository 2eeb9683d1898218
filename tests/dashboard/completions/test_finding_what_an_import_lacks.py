"""Completions whose length, advantage and end no one knows, in the list of them."""

import re

import pytest
from django.urls import reverse

from dashboard.runs.models import Run
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.completions.stored import change_completions

PLACE = re.compile(r'data-found="1/4/(\d)"')


@pytest.fixture(params=["fresh", "in a block"])
def run(team, request) -> Run:
    """Of three completions the second has its text and reward alone."""
    run = make_run(team, last_step=1)
    make_group(run, step=1, prompt_index=4, rewards=(1.2, 0.2, 0.0))
    change_completions(
        position=1, num_tokens=None, advantage=None, end_reason="unknown"
    )
    if request.param == "in a block":
        make_blocks(run)
    return run


def test_unknown_values_are_last_and_outside_all_bounds(alice_client, run):
    address = reverse("completions", args=["alpha", run.pk])
    for query, expected in {
        "sort=length": "132",
        "sort=-length": "312",
        "sort=advantage": "312",
        "sort=-advantage": "132",
        "min_length=0&sort=step": "13",
        "max_length=2147483647&sort=step": "13",
        "min_advantage=-1000&sort=step": "13",
        "end=stop&sort=step": "13",
        "end=unknown": "2",
        "end=length": "",
    }.items():
        html = alice_client.get(f"{address}?{query}").content.decode()

        found = "".join(str(int(at) + 1) for at in PLACE.findall(html))
        assert found == expected, query


def test_unknown_values_are_shown(alice_client, run):
    address = reverse("completions", args=["alpha", run.pk])

    html = alice_client.get(f"{address}?end=unknown").content.decode()

    assert "length unknown" in html
    assert "end unknown" in html
