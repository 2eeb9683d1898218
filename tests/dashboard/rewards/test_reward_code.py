"""Rules that run code, on the pages that use them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.operations.management.commands import check_sandbox
from dashboard.rewards import trial
from tests.dashboard.rewards.editor import fields
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.slot import SandboxStatus

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

    assert page.count("def reward(") >= 3  # two are examples
    assert "Default def" not in page


def test_the_command_tells_which_levels_work():
    output = StringIO()

    call_command("check_sandbox", stdout=output)

    assert "at level" in output.getvalue()


def test_the_command_fails_without_a_sandbox(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_sandbox, "obstacle", lambda level: "none here")

    with pytest.raises(CommandError, match="this machine"):
        call_command("check_sandbox", stdout=StringIO())


def test_the_editor_reports_a_missing_sandbox(
    alice_client: Client, monkeypatch: pytest.MonkeyPatch
):
    nothing = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    monkeypatch.setattr(trial, "find_sandbox", lambda **_: nothing)
    added = fields(action="add", add_kind="code_tests")

    page = alice_client.post("/alpha/rewards/new", added).content.decode()

    assert page.count("no Landlock") == 1
    assert "bubblewrap" in page
    assert "/alpha/workers" in page
    without = alice_client.post(
        "/alpha/rewards/new", fields(action="add", add_kind="length")
    )
    assert "no Landlock" not in without.content.decode()
