"""Environments of dataset versions: edited, tried on a row, saved."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from dashboard.datasets import environments
from dashboard.datasets.environments import (
    EnvironmentForm,
    Try,
    add_ready,
)
from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.tokenizer_pool import Busy, TokenizerPool
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch.fit import fit_to_rows
from tests.dashboard.completions.factories import store_dataset

DEFAULTS = {path: field.default_text for path, field in all_fields().items()}
ROWS = [Row(prompt="5 24 ?", answer="17"), Row(prompt="1 9 ?", answer="3")]
ADD = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    return a + b
'''


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    return store_dataset(shared_team, ROWS, name="Numbers")


@pytest.fixture
def replies(monkeypatch) -> list[dict[str, Any]]:
    """Give the replies of an environment, and keep what it is asked."""
    asked: list[dict[str, Any]] = []

    def ask(*, question: dict[str, Any], **_: Any) -> dict[str, Any]:
        asked.append(question)
        message = {"role": "user", "content": "+"}
        reply = {"reward": 1.0, "episode_reward": 0.5, "metrics": {}, "calls": []}
        played = {"tools": ["add"], "opening": [], "seconds": 0.1}
        if question["said"]:
            played |= {"messages": [message], "is_done": False, **reply}
        return played

    monkeypatch.setattr(environments.tokenizers, "ask", ask)
    return asked


def post(client: Client, version: DatasetVersion, action: str, **fields: Any) -> Any:
    url = f"/alpha/datasets/{version.dataset_id}/environment"
    form = {"kind": "guess", "max_tokens": "64", "row": "0", **fields}
    return client.post(url, form | {"action": action})


def test_saving_makes_a_version_of_the_same_rows(alice_client, version):
    fields = {"kind": "tools", "tools": '["add"]', "source": ADD, "max_turns": "3"}

    answer = post(alice_client, version, "save", **fields)
    post(alice_client, version, "save", **fields)

    newest = version.dataset.versions.get(number=2)
    assert answer.status_code == 302
    assert version.dataset.versions.count() == 2
    assert newest.content_sha256 == version.content_sha256
    kept = {"kind": "tools", "tools": ["add"], "source": ADD}
    assert newest.environment == {**kept, "max_turns": 3, "max_tokens": 64}
    assert EnvironmentForm.of(newest).read() == newest.environment
    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/environment")
    assert page.context["form"].texts["source"] == ADD
    changes = alice_client.get(f"/alpha/datasets/{version.dataset_id}/changes")
    assert changes.status_code == 200


def test_settings_that_the_kind_does_not_read_are_not_kept(alice_client, version):
    post(alice_client, version, "save", tools='["add"]', source="def")

    newest = version.dataset.versions.get(number=2)
    assert newest.environment == {"kind": "guess", "max_tokens": 64}


def test_an_environment_is_removed_by_a_version_without_it(alice_client, version):
    post(alice_client, version, "save")
    post(alice_client, version, "save", kind="none")

    assert version.dataset.versions.get(number=3).environment is None


def test_a_taskset_that_is_not_allowed_is_not_saved(alice_client, version, settings):
    settings.TASKSETS = frozenset({"words"})

    for name in ("other", "words"):
        page = post(alice_client, version, "save", kind="verifiers", taskset=name)

        assert page.status_code == 422
        assert set(page.context["form"].errors) == {"taskset"}
        assert "COHORT_TASKSETS" in page.text
    assert version.dataset.versions.count() == 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"kind": "tools", "tools": "[]"}, "tools"),
        ({"kind": "tools", "tools": "add"}, "tools"),
        ({"kind": "tools", "tools": '["\\ud800"]'}, "tools"),
        ({"kind": "tools", "tools": '["\\u0000"]'}, "tools"),
        ({"kind": "verifiers", "taskset": "a\0"}, "taskset"),
        (
            {"kind": "verifiers", "taskset": "a", "options": '{"a": "\\u0000"}'},
            "options",
        ),
        (
            {
                "kind": "verifiers",
                "taskset": "a",
                "options": f'{{"a": {"[" * 300}{"]" * 300}}}',
            },
            "options",
        ),
        (
            {
                "kind": "verifiers",
                "taskset": "a",
                "options": f'{{"a": "{"b" * 20_000}"}}',
            },
            "options",
        ),
        ({"kind": "python", "source": ""}, "source"),
        ({"max_turns": "0"}, "max_turns"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"kind": "other"}, "kind"),
    ],
)
def test_an_invalid_setting_is_refused_at_its_field(
    alice_client, version, fields, name
):
    answer = post(alice_client, version, "save", **fields)

    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {name}
    assert version.dataset.versions.count() == 1


def test_turns_of_a_try_are_one_conversation(alice_client, version, replies):
    first = post(alice_client, version, "try", says="9", row="1")
    played = first.context["tried"].played

    second = post(alice_client, version, "try", says="<b>20", played=played)
    again = post(alice_client, version, "restart", says="1", played=played)

    assert [turn["text"] for turn in replies[1]["said"]] == ["9", "<b>20"]
    assert replies[0]["index"] == 1
    assert replies[0]["owner"] == f"team {version.dataset.team_id}"
    authors = [block.record.author for block in second.context["blocks"]]
    assert authors == ["policy", "environment"] * 2
    assert second.context["blocks"][2].record.reward == 1.0
    assert "&lt;b&gt;20" in second.text
    assert again.context["blocks"] == []
    assert version.dataset.versions.count() == 1


def test_arguments_of_a_call_must_be_an_object(alice_client, version, replies):
    fields = {"kind": "tools", "tools": '["add"]', "source": ADD, "tool": "add"}

    refused = post(alice_client, version, "try", **fields, arguments="[1]")
    post(alice_client, version, "try", **fields, arguments='{"a": 1, "b": 2}')

    assert "[1]" in refused.context["tried"].reply["problem"]
    (asked,) = replies
    (call,) = asked["said"][0]["calls"]
    assert call == {"name": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.parametrize("played", ["[", '[{"author": "judge"}]', "{}"])
def test_turns_that_are_not_of_the_page_are_forgotten(
    alice_client, version, replies, played
):
    answer = post(alice_client, version, "try", played=played, says="9")

    assert answer.status_code == 200
    assert len(replies[0]["said"]) == 1


def test_a_try_waits_for_its_process(alice_client, version, monkeypatch):
    def ask(**_: Any) -> None:
        raise Busy("later")

    monkeypatch.setattr(environments.tokenizers, "ask", ask)
    answer = post(alice_client, version, "try", says="9")

    assert 'hx-trigger="load delay:1s"' in answer.text, "asks again by itself"
    assert answer.context["tried"].text == "9", "to be sent again"
    assert answer.context["blocks"] == []


def test_viewers_and_other_teams_run_nothing(
    bob_client, charlie_client, version, replies
):
    url = f"/alpha/datasets/{version.dataset_id}/environment"

    assert "Viewers cannot" in bob_client.get(url).text
    for action in ("try", "save"):
        assert post(bob_client, version, action, says="9").status_code == 403
        assert post(charlie_client, version, action, says="9").status_code == 404
    assert charlie_client.get(url).status_code == 404
    assert not replies


def test_ready_environments_are_added_in_one_click(alice_client, team):
    url = "/alpha/datasets/environments"

    for key, kind in (("guess", "Guess"), ("countdown_calculator", "calculator")):
        answer = alice_client.post(url, {"ready": key})
        alice_client.post(url, {"ready": key})

        assert answer.status_code == 302
        version = DatasetVersion.objects.get(dataset__name__contains=kind)
        assert version.environment is not None
        assert version.environment["kind"] == key
        assert version.num_rows > 1_000
        assert EnvironmentForm.of(version).read() == version.environment
    assert alice_client.post(url, {"ready": "other"}).status_code == 404
    assert "Guess" in alice_client.get(url).text


@pytest.fixture
def processes(monkeypatch) -> Iterator[None]:
    pool = TokenizerPool()
    monkeypatch.setattr(environments, "tokenizers", pool)
    yield
    for process in pool.processes.values():
        process.close()


def play(tried: Try, row: DatasetRow, environment: dict[str, Any]) -> None:
    """As the page does, which asks again while the process starts."""
    tried.play(row, environment, team=row.version.dataset.team)
    while tried.reply.get("is_pending"):
        tried.play(row, environment, team=row.version.dataset.team)


@pytest.mark.usefixtures("processes")
def test_a_try_runs_the_user_s_code_in_a_sandbox(team, monkeypatch):
    row = store_dataset(team, ROWS, name="Sums").rows.get(position=0)
    hostile = "def reply(row, seed, said):\n    while True: pass"

    called = Try({"tool": "add", "arguments": '{"a": 20, "b": 3}'})
    tools = {"kind": "tools", "tools": ["add"], "source": ADD}
    play(called, row, tools)
    broken = Try({"says": "9"})
    play(broken, row, {"kind": "python", "source": "x ="})
    monkeypatch.setattr(environments, "TRY_SECONDS", 2.0)
    endless = Try({"says": "9"})
    play(endless, row, {"kind": "python", "source": hostile})

    assert called.turns[-1].calls[0].result == "23"
    assert called.reply["tools"] == ["add"]
    assert broken.reply["is_source"]
    assert "SyntaxError" in broken.reply["problem"]
    assert "timed out" in endless.reply["problem"]
    assert endless.turns == []
    assert json.loads(called.played)[0]["asks"][0]["name"] == "add"


def test_a_ready_dataset_has_its_environment_in_a_run(alice_client, alice, team):
    version = add_ready(team, "guess", alice)

    page = alice_client.get(f"/alpha/runs/new?dataset={version.pk}")

    assert page.context["form"].texts["environment.kind"] == "guess"
    assert page.context["form"].texts["environment.max_turns"] == "5"


def test_a_ready_dataset_leaves_the_teams_own_rows_and_edits_alone(
    alice_client, alice, team
):
    own = store_dataset(team, ROWS, name="Guess")
    url = "/alpha/datasets/environments"

    alice_client.post(url, {"ready": "guess"})

    assert own.dataset.versions.count() == 1
    added = team.datasets.get(name="Guess of Cohort")

    added.versions.create(
        number=2,
        content_sha256="0" * 64,
        num_rows=1,
        mapping={},
        environment={"kind": "guess", "max_turns": 9},
    )
    alice_client.post(url, {"ready": "guess"})
    newest = added.versions.latest("number")
    assert (newest.number, newest.environment["max_turns"]) == (2, 9)


def test_a_ready_game_can_be_launched_with_any_model(alice_client, alice, team):
    version = add_ready(team, "guess", alice)
    for tokens in ("256", "4096"):
        texts = fit_to_rows(
            DEFAULTS | {"rollout.max_new_tokens": tokens},
            version,
            "org/model",
        ).texts

        limit = int(texts["environment.max_tokens"])
        assert limit >= int(texts["data.max_prompt_tokens"]) + int(tokens)


def test_a_setting_of_a_later_release_is_left_out_of_the_form(version):
    version.environment = {"kind": "guess", "of_later": 3}

    form = EnvironmentForm.of(version)

    assert form.texts["kind"] == "guess"
    assert "of_later" not in form.texts
