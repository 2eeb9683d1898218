"""Environments on the launch form: their card, what they lack, and the game."""

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.analysis.probes.models import Probe
from dashboard.datasets import token_preview
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.tokenizer_pool import Busy
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.trial import Sandbox
from dashboard.runs.launch import page
from dashboard.runs.models import Run
from dashboard.supervision.starter import GAME, copy_starter, launch_starter_run
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.dashboard.runs.test_clone import _fields

NEW = "/alpha/runs/new"
PYTHON = "def reply(row, seed, said):\n    return 'no'"


@pytest.fixture(autouse=True)
def data(settings, tmp_path, monkeypatch) -> None:
    def load(**_: Any) -> dict[str, Any]:
        raise Busy

    settings.COHORT_DATA = tmp_path
    monkeypatch.setattr(token_preview.tokenizers, "ask", load)


@pytest.fixture
def single(alice_client, team) -> dict[str, str]:
    """The filled in form of a run of single turns."""
    make_dataset(team)
    make_recipe(team)
    form = _fields(alice_client.get(f"{NEW}?model=org/model").text)
    return form | {"confirmed": "on"}


def with_environment(form: dict[str, str], kind: str, **more: str) -> dict[str, str]:
    more = {name.replace("__", "."): text for name, text in more.items()}
    limit = {"environment.kind": kind, "environment.max_tokens": "9000"}
    return form | limit | more


def summary_of(client: Client, form: dict[str, str]) -> Any:
    return client.post(f"{NEW}/summary", form).context["summary"]


def test_the_card_is_folded_without_an_environment(alice_client, single):
    plain = alice_client.get(NEW).context["fields"]
    game = alice_client.post(NEW, with_environment(single, "guess", name=""))

    assert plain.environment.part.name == "environment"
    assert "environment" not in [bound.part.name for bound in plain.parts]
    assert not plain.environment.is_open
    assert game.context["fields"].environment.is_open


def test_the_toml_names_the_environment_only_if_there_is_one(alice_client, single):
    plain = alice_client.post(f"{NEW}/toml", single).text
    game = alice_client.post(f"{NEW}/toml", with_environment(single, "guess")).text

    assert "environment" not in plain
    assert '[environment]\nkind = "guess"' in game


def test_the_environments_own_reward_is_saved_and_chosen(alice_client, single):
    form = with_environment(single, "guess") | {"of_environment": "on"}

    answer = alice_client.post(f"{NEW}/recipe", form)

    version = RecipeVersion.objects.latest("pk")
    assert [rule["kind"] for rule in version.spec["rules"]] == ["environment"]
    assert answer.context["form"].recipe == str(version.pk)
    assert answer.context["environment_recipes"] == [str(version.pk)]
    chosen = form | {"recipe": str(version.pk)}
    # A trial is no episode, so it tells nothing of this rule.
    assert summary_of(alice_client, chosen).warnings == ()


def test_a_missing_sandbox_is_reported(alice_client, single, monkeypatch):
    lack = Sandbox(level=0, name="", has_group=False, problem="No bubblewrap.")
    monkeypatch.setattr(page, "sandbox_here", lambda: lack)
    form = with_environment(single, "python", environment__source=PYTHON)

    [warning] = summary_of(alice_client, form).warnings
    assert "No bubblewrap." in warning
    assert summary_of(alice_client, with_environment(single, "guess")).warnings == ()


def test_episodes_longer_than_the_context_are_reported(alice_client, single, tmp_path):
    folder = tmp_path / "starter" / "small" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 8000}')
    form = with_environment(single, "guess", model=str(folder))

    [warning] = summary_of(alice_client, form).warnings
    assert "9,000" in warning
    form["environment.max_tokens"] = "8000"
    assert summary_of(alice_client, form).warnings == ()


def test_a_template_without_such_turns_is_refused(alice_client, single, monkeypatch):
    asked = []

    def reply(**question: Any) -> dict[str, Any]:
        asked.append(question["question"])
        return {"problem": "No roles.", "refusals": ["No user turns."]}

    monkeypatch.setattr(token_preview.tokenizers, "ask", reply)
    answer = alice_client.post(NEW, with_environment(single, "guess", seed="5"))

    assert answer.status_code == 422
    assert "No user turns." in answer.context["refused"]
    assert (asked[0]["environment"]["kind"], asked[0]["seed"]) == ("guess", "5")
    assert not Run.objects.exists()
    assert alice_client.post(NEW, single).status_code == 302
    assert len(asked) == 1


def test_two_episodes_of_a_row_are_tried(alice_client, single):
    form = with_environment(single, "guess") | {"one_row": "on"}

    answer = alice_client.post(f"{NEW}/probe", form)

    probe = Probe.objects.get()
    assert answer.url == f"/alpha/probes/{probe.pk}/"
    assert (len(probe.positions), probe.num_samples, probe.is_sample) == (1, 2, True)
    assert probe.config["environment"]["kind"] == "guess"


def test_the_game_is_launched_in_one_click_and_made_once(alice_client, team, alice):
    countdown = launch_starter_run(team=team, user=alice, folder=copy_starter())
    for _ in range(2):
        answer = alice_client.post(NEW, {"starter": GAME})
        assert answer.status_code == 302, answer.text

    first, second, of_countdown = Run.objects.order_by("-pk")
    assert of_countdown == countdown
    assert (
        first.config["environment"] | {"kind": "guess", "max_turns": 5}
        == (first.config["environment"])
    )
    assert first.config["optim"]["num_steps"] == 400
    assert first.dataset_version == second.dataset_version
    assert first.recipe_version == second.recipe_version
    assert first.recipe_version.spec["rules"][0]["kind"] == "environment"
    assert Dataset.objects.count() == 2


def test_each_starter_brings_its_own_rows(alice_client, team, alice):
    launch_starter_run(team=team, user=alice, folder=copy_starter())
    alice_client.post(NEW, {"starter": GAME})
    game = Run.objects.latest("pk")
    form = alice_client.get(NEW).context["form"]
    of_game = alice_client.get(f"{NEW}?dataset={game.dataset_version_id}")

    assert form.model_path.endswith("countdown/model")
    assert form.dataset_version.source.get("starter") is None
    assert of_game.context["form"].model_path == game.config["model"]["path"]
    assert of_game.context["form"].recipe == str(game.recipe_version_id)
    kept = game.dataset_version.environment
    assert kept == {key: game.config["environment"][key] for key in kept}
    assert kept["kind"] == "guess"


def test_the_game_is_offered_where_it_was_copied(alice_client, bob_client, team):
    assert 'value="guess"' not in alice_client.get("/alpha/runs/").text

    folder = copy_starter(GAME)

    assert json.loads((folder / "starter.json").read_text())["steps"] == 300
    assert alice_client.get("/alpha/runs/").text.count('value="guess"') == 2


def test_a_launch_with_a_taskset_that_is_not_allowed_makes_no_run(
    alice_client, single, settings
):
    taskset = {"environment.taskset": "reverse-text"}
    form = with_environment(single, "verifiers") | taskset
    made = {"kind": "taskset", "task": "reverse-text", "options": {}}
    for allowed, source, num_runs in (
        (frozenset(), made, 0),
        (frozenset(["reverse-text"]), {"kind": "upload"}, 0),
        (frozenset(["reverse-text"]), made, 1),
    ):
        settings.TASKSETS = allowed
        DatasetVersion.objects.update(source=source)

        page = alice_client.post(NEW, form | {"name": f"run-{num_runs}"})

        assert ("COHORT_TASKSETS" in page.text) == (num_runs == 0)
        if num_runs == 0:
            problems = page.context["form"].problems.by_field
            refused = [control for control, said in problems.items() if said]
            assert refused == ["environment.taskset"]
        assert Run.objects.count() == num_runs
