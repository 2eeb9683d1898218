"""Rules that run code, on the pages that use them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.rows import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.management.commands import check_sandbox
from tests.dashboard.rewards.editor import fields
from trainer.rewards.sandbox import pool

SOURCE = (
    "def reward(completion):\n    print('<b>seen</b>')\n    return len(completion) / 9"
)


def test_a_function_is_tried_in_its_teams_sandbox(alice_client: Client, team: Team):
    rows = [Row(prompt="?", answer="4", columns={})]
    version = create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )
    rule = ("python_function", {"params-source": SOURCE.replace("\n", "\r\n")})
    shown = {"try-version": str(version.pk), "try-offset": "0", "try-seed": ""}

    answer = alice_client.post(
        "/alpha/rewards/try", fields(rule, **shown, **{"completion-0": "abc"})
    )

    (tried,) = answer.context["benches"][0].tried
    assert tried.score.total == pytest.approx(1 / 3)
    assert "&lt;b&gt;seen&lt;/b&gt;" in answer.content.decode()
    assert f"team {team.pk}" in pool._pool._places


def test_the_editor_offers_a_function_to_begin_with(alice_client: Client):
    added = fields(action="add", add_kind="python_function")

    page = alice_client.post("/alpha/rewards/new", added).content.decode()

    assert page.count("def reward(completion, answer):") >= 3  # two are examples
    assert "Default def" not in page


def test_the_command_tells_which_levels_work():
    output = StringIO()

    call_command("check_sandbox", stdout=output)

    assert "Reward code runs at level" in output.getvalue()


def test_the_command_fails_where_nothing_works(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_sandbox, "obstacle", lambda level: "none here")

    with pytest.raises(CommandError, match="cannot run on this machine"):
        call_command("check_sandbox", stdout=StringIO())
