from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run

PAGES = [("groups", []), ("group", [1, 0]), ("completions", []), ("run_reward_log", [])]


@pytest.fixture(scope="module")
def run(shared_team: Team) -> Run:
    run = make_run(shared_team)
    make_group(run)
    return run


def test_members_can_read_and_others_get_404(
    client: Client, bob_client: Client, charlie_client: Client, run: Run
) -> None:
    for name, rest in PAGES:
        own, other = (
            reverse(name, args=[slug, run.pk, *rest]) for slug in ("alpha", "other")
        )

        assert bob_client.get(own).status_code == 200, name
        assert charlie_client.get(own).status_code == 404, name
        assert charlie_client.get(other).status_code == 404, name
        signed_out = client.get(own)
        assert signed_out.status_code == 302
        assert signed_out.headers["Location"].startswith(reverse("sign_in"))
