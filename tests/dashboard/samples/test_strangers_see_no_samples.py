from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from tests.dashboard.samples.factories import make_group, make_run

PAGES = [("groups", []), ("group", [1, 0]), ("completions", []), ("run_reward_log", [])]


@pytest.fixture
def run(team: Team) -> Run:
    run = make_run(team)
    make_group(run)
    return run


@pytest.mark.parametrize(("name", "rest"), PAGES)
@pytest.mark.parametrize("slug", ["alpha", "other"])
def test_a_stranger_gets_404_through_any_team(
    charlie_client: Client, run: Run, name: str, rest: list[int], slug: str
) -> None:
    url = reverse(name, args=[slug, run.pk, *rest])

    assert charlie_client.get(url).status_code == 404


@pytest.mark.parametrize(("name", "rest"), PAGES)
def test_a_viewer_may_look(
    bob_client: Client, run: Run, name: str, rest: list[int]
) -> None:
    assert (
        bob_client.get(reverse(name, args=["alpha", run.pk, *rest])).status_code == 200
    )


@pytest.mark.parametrize(("name", "rest"), PAGES)
def test_someone_not_signed_in_is_sent_to_sign_in(
    client: Client, run: Run, alice: User, name: str, rest: list[int]
) -> None:
    response = client.get(reverse(name, args=["alpha", run.pk, *rest]))

    assert response.status_code == 302
    assert response.headers["Location"].startswith(reverse("sign_in"))
