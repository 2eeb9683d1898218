"""Prompts by their length in tokens, with a line where the prompt limit is."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version


@pytest.fixture
def version(team: Team) -> DatasetVersion:
    rows = [Row(prompt=f"{number}?", answer="1") for number in range(14)]
    version = create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )
    TokenLengths.objects.create(
        version=version,
        model="m",
        num_wanted=14,
        num_looked=14,
        result={"lengths": [[3, 8], [5, 4], [9, 2]], "every": 1},
        moved_at=timezone.now(),
    )
    return version


def figure(client: Client, version: DatasetVersion, limit: int) -> Any:
    page = client.get(
        f"/alpha/datasets/{version.dataset_id}/statistics",
        {"model": "m", "limit": limit},
    )
    assert 'data-figure="tokens"' in page.text
    return page.context["figures"]["tokens"]


def test_each_bar_counts_the_prompts_of_its_length(
    alice_client: Client, version: DatasetVersion
) -> None:
    (bars,) = figure(alice_client, version, 4)["data"]

    counts = {x: y for x, y in zip(bars["x"], bars["y"], strict=True) if y}
    assert counts == {3: 8, 5: 4, 9: 2}


def test_the_limit_is_a_line_between_what_fits_and_what_does_not(
    alice_client: Client, version: DatasetVersion
) -> None:
    for limit, places in ((4, [4.5]), (9, [9.5]), (500, [])):
        shapes = figure(alice_client, version, limit)["layout"].get("shapes", [])

        assert [shape["x0"] for shape in shapes] == places


def test_the_share_above_the_limit_is_told(
    alice_client: Client, version: DatasetVersion
) -> None:
    url = f"/alpha/datasets/{version.dataset_id}/statistics"

    page = alice_client.get(url, {"model": "m", "limit": 4}).text

    assert "42.86 %" in page
