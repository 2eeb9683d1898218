"""Every page of an outside run shows what its trainer told, and says what it lacks."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from dashboard.training.outside.opening import open_run
from tests.dashboard.training.logs import LogBuilder
from tests.dashboard.training.outside.sending import send
from tests.dashboard.training.outside.test_opening_a_run import OPENING

pytestmark = pytest.mark.django_db
PAGES = (
    "run",
    "run_metrics",
    "groups",
    "completions",
    "run_prompts",
    "run_reward_log",
    "run_alerts",
    "run_logs",
    "run_system",
    "run_export",
    "run_lineage",
)


@pytest.fixture
def outside(team: Team, alice: User) -> Run:
    run = open_run(OPENING, team=team, user=alice)[0]
    send(run, LogBuilder().stepped(1).stepped(2))
    return run


def page(client: Client, name: str, *args: object) -> str:
    answer = client.get(reverse(name, args=["alpha", *args]))
    assert answer.status_code == 200, (name, answer.status_code)
    return answer.content.decode()


@pytest.mark.parametrize("has_ended", [False, True])
def test_each_page_is_there(
    outside: Run, alice_client: Client, has_ended: bool
) -> None:
    if has_ended:
        log = LogBuilder().stepped(1).stepped(2).finished(2)
        send(outside, log)

    for name in PAGES:
        text = page(alice_client, name, outside.pk)
        assert "was imported" not in text, name
    for tab in ("config", "checkpoints"):
        page(alice_client, "run_tab", outside.pk, tab)


def test_its_page_says_who_trains_it_and_offers_no_pause(
    outside: Run, alice_client: Client
) -> None:
    text = page(alice_client, "run", outside.pk)

    assert "Trained outside Cohort, by TRL 1.16.0 on node-3" in text
    assert "Close this run?" in text
    assert "data-run-pause>" not in text


def test_its_settings_are_shown_and_compared(
    outside: Run, team: Team, alice: User, alice_client: Client
) -> None:
    changed = replace(OPENING, key=uuid4(), settings={"learning_rate": 2e-6})
    other = open_run(changed, team=team, user=alice)[0]

    config = page(alice_client, "run_tab", outside.pk, "config")
    compared = alice_client.get(
        reverse("compare", args=["alpha"]), {"runs": f"{outside.pk},{other.pk}"}
    ).content.decode()

    assert "fsdp.offload" in config
    assert "settings.learning_rate" in compared


def test_its_prompts_are_counted_when_it_has_ended(
    outside: Run, alice_client: Client
) -> None:
    before = page(alice_client, "run_prompts", outside.pk)
    send(outside, LogBuilder().stepped(1).stepped(2).finished(2))

    after = page(alice_client, "run_prompts", outside.pk)

    assert "Prompts are counted when the run has ended" in before
    assert "2 of 2 prompts were sampled" in after
