"""Rules that run code, on the pages that use them."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from dashboard.operations.management.commands import check_sandbox
from dashboard.rewards import trial
from dashboard.rewards.models import RecipeVersion
from tests.dashboard.completions.factories import make_recipe
from tests.dashboard.rewards.editor import fields
from trainer.rewards.function_forms import FORMS
from trainer.rewards.sandbox import pool
from trainer.rewards.sandbox.levels import packages_here
from trainer.rewards.sandbox.slot import SandboxStatus

SOURCE = (
    "def reward(completion):\n    print('<b>seen</b>')\n    return len(completion) / 9"
)


def test_a_function_is_named_after_itself_unless_it_has_a_name(alice_client):
    own = "def shortest(completion): return 0"
    for changes, name in (
        ({"params-source": own}, "shortest"),
        ({"params-source": own, "name": "python_function_2"}, "shortest"),
        ({"params-source": own, "name": "mine"}, "mine"),
        ({"params-source": own, "keeps_name": "on"}, "python_function"),
        ({}, "python_function"),  # the example
        ({"params-source": TWO}, "python_function"),  # which one is not said
    ):
        rule = ("python_function", changes)

        answer = alice_client.post("/alpha/rewards/check", fields(rule))

        assert [each.name for each in answer.context["draft"].rules] == [name]
        is_swapped = 'id="rules-0-name"' in answer.text
        assert is_swapped == (name == "shortest")


def test_a_saved_functions_name_is_kept(alice_client, team):
    source = "def shortest(completion): return 0"
    rule = {"name": "python_function", "kind": "python_function", "weight": 1.0}
    version = make_recipe(team, rules=[rule | {"params": {"source": source}}])
    url = f"/alpha/rewards/{version.recipe_id}/edit"

    page = alice_client.get(url)

    assert page.context["draft"].rules[0].name == "python_function"
    assert 'name="rules-0-keeps_name" value="on"' in page.text


def test_the_editor_offers_a_function_to_begin_with(alice_client):
    added = fields(action="add:python_function")

    page = alice_client.post("/alpha/rewards/new", added).content.decode()

    assert "def reward(" in page
    assert "Default def" not in page


TWO = (
    "import torch\n"
    "def helper(text): ...\n"
    "def exact(completion, answer): ...\n"
    "def lengths(completions, **kwargs) -> float: ...\n"
)


def test_the_editor_shows_the_form_of_a_function(alice_client):
    three = f"{TWO}def words(completions, **kwargs) -> int: ..."
    rule = ("python_function", {"params-source": three})
    named = ("python_function", {"params-source": three, "params-function": "lengths"})

    answer = alice_client.post("/alpha/rewards/check", fields(rule, named))

    first, second = (each.report for each in answer.context["draft"].rules)
    assert first.called is None
    assert [each.form for each in first.functions] == ["verifiers", "trl", "trl"]
    assert [each.name for each in first.others] == ["exact", "words"]
    assert second.called.title == "TRL reward function lengths"
    assert second.missing == ("torch",)
    assert b"TRL reward function lengths" in answer.content
    assert answer.content.count(b'data-wrong-types="2"') == 2
    assert answer.context["draft"].recipe is None  # which one is called is not said


@pytest.mark.parametrize("form", FORMS)
def test_an_example_of_each_form_can_be_inserted(alice_client, form):
    rule = ("python_function", {"params-function": "other"})

    answer = alice_client.post(
        "/alpha/rewards/new", fields(rule, action=f"example:0:{form}")
    )

    (found,) = answer.context["draft"].rules
    assert found.report.called.form == form
    assert found.errors == {}
    assert answer.context["draft"].recipe is not None


def test_an_example_replaces_no_code_of_the_users_own(alice_client):
    rule = ("python_function", {"params-source": SOURCE})
    added = fields(rule, action="example:0:verl")

    (found,) = alice_client.post("/alpha/rewards/new", added).context["draft"].rules

    assert found.texts["source"].startswith(SOURCE)
    assert found.report.called.name == "reward"
    assert [each.name for each in found.report.others] == ["compute_score"]


def test_each_function_of_a_source_becomes_a_rule(alice_client, team):
    rule = ("python_function", {"params-source": TWO, "params-maximum": "2"})
    saved = fields(rule, action="save", name="Both")

    split = alice_client.post("/alpha/rewards/new", saved | {"action": "split:0"})
    answer = alice_client.post("/alpha/rewards/new", saved)

    named = [each.name for each in split.context["draft"].rules]
    assert named == ["exact", "lengths"]
    assert answer.status_code == 302
    rules = RecipeVersion.objects.get().spec["rules"]
    assert [rule["name"] for rule in rules] == ["exact", "lengths"]
    for rule in rules:
        assert rule["params"]["function"] == rule["name"]
        assert rule["params"]["source"] == TWO
        assert rule["params"]["maximum"] == 2.0


def test_a_source_without_a_function_is_refused_at_its_field(alice_client):
    rule = ("python_function", {"params-source": "def helper(text): ..."})

    answer = alice_client.post("/alpha/rewards/check", fields(rule))

    (found,) = answer.context["draft"].rules
    (message,) = found.errors["source"]
    for word in ("reward(", "completions", "solution_str", "state"):
        assert word in message


def test_packages_are_listed_as_the_sandbox_offers_them(alice_client, monkeypatch):
    added = fields(action="add:python_function")
    page = alice_client.post("/alpha/rewards/new", added).content.decode()
    nothing = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    monkeypatch.setattr(trial, "find_sandbox", lambda **_: nothing)
    without = alice_client.post("/alpha/rewards/new", added).content.decode()

    for name, package in packages_here(pool.sandbox_level()).items():
        assert f"{name} {package.version}" in page
        assert f"{name} {package.version}" not in without


def test_the_command_tells_which_levels_work():
    output = StringIO()

    call_command("check_sandbox", stdout=output)

    assert "at level" in output.getvalue()


def test_the_command_fails_without_a_sandbox(monkeypatch):
    monkeypatch.setattr(check_sandbox, "obstacle", lambda level: "none here")

    with pytest.raises(CommandError, match="this machine"):
        call_command("check_sandbox", stdout=StringIO())


def test_the_editor_reports_a_missing_sandbox(alice_client, monkeypatch):
    nothing = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    monkeypatch.setattr(trial, "find_sandbox", lambda **_: nothing)
    added = fields(action="add:code_tests")

    page = alice_client.post("/alpha/rewards/new", added).content.decode()

    assert page.count("no Landlock") == 1
    assert "bubblewrap" in page
    assert "/alpha/compute" in page
    without = alice_client.post("/alpha/rewards/new", fields(action="add:length"))
    assert "no Landlock" not in without.content.decode()
