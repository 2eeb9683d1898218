"""How somebody wants charts drawn is kept for that person, on all runs."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.accounts.models import Team, User
from dashboard.runs.charts.settings import read_settings
from tests.dashboard.samples.factories import make_run

PLACE = "/alpha/runs/charts"


def test_what_was_set_is_on_the_next_run(
    alice_client: Client, team: Team, alice: User
) -> None:
    chosen = {"smooth": "0.9", "x": "tokens", "log": "all,kl-mean", "tails": "off"}

    answer = alice_client.post(PLACE, chosen)

    assert answer.status_code == 200, answer.content
    kept = "smooth=0.9&amp;x=tokens&amp;log=all%2Ckl-mean&amp;tails=off"
    for tab in ("", "metrics/"):
        page = alice_client.get(f"/alpha/runs/{make_run(team).id}/{tab}").text
        assert f'data-kept="{kept}"' in page


def test_settings_are_a_persons_own(
    alice_client: Client, team: Team, alice: User, bob: User
) -> None:
    alice_client.post(PLACE, {"smooth": "0.9"})

    assert read_settings(alice) == "smooth=0.9"
    assert read_settings(bob) == ""


def test_nothing_set_forgets_what_was_kept(
    alice_client: Client, team: Team, alice: User
) -> None:
    alice_client.post(PLACE, {"smooth": "0.9"})

    alice_client.post(PLACE, {})

    assert read_settings(alice) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("smooth", "1"),
        ("smooth", "nan"),
        ("smooth", "much"),
        ("x", "moon"),
        ("log", "<b>"),
        ("tails", "maybe"),
        ("from", "12"),
        ("clip", ",".join(["kl-mean"] * 200)),
    ],
)
def test_what_means_nothing_is_refused_with_its_value(
    alice_client: Client, team: Team, alice: User, name: str, value: str
) -> None:
    answer = alice_client.post(PLACE, {name: value})

    assert answer.status_code == 400
    assert name in answer.json()["error"] or "characters" in answer.json()["error"]
    assert read_settings(alice) == ""
