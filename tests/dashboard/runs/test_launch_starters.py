from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import COUNTDOWN, make_dataset, make_recipe
from tests.dashboard.runs.test_clone import _fields
from trainer.rewards.spec import Recipe

RUN_TOML = """
[model]
path = "model"
[data]
rows = "rows.jsonl"
[optim]
num_steps = 60
learning_rate = 1e-3
[rollout]
max_new_tokens = 24
"""


@pytest.fixture
def starter(settings: Any, tmp_path: Path) -> Path:
    settings.COHORT_DATA = tmp_path
    folder = tmp_path / "starter" / "countdown"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "run.toml").write_text(RUN_TOML)
    (folder / "starter.json").write_text("{}")
    return folder


def _page(client: Client, team: Team, query: str = "") -> str:
    return unescape(client.get(f"/{team.slug}/runs/new{query}").text)


def test_starter_models_are_offered_by_their_title_once_they_are_made(
    alice_client: Client, team: Team, starter: Path
) -> None:
    title = "Countdown starter (0.6 M)"
    option = f'<option value="{starter}/model" selected>{title}</option>'
    assert option in _page(alice_client, team)

    (starter / "starter.json").unlink()

    assert title not in _page(alice_client, team)


def test_a_pretrained_model_needs_no_note_of_its_making(
    alice_client: Client, team: Team, starter: Path
) -> None:
    model = starter.parent / "smollm2" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")

    page = _page(alice_client, team)

    assert f'<option value="{model}" selected>SmolLM2-135M-Instruct</option>' in page
    assert f'<option value="{starter}/model">Countdown starter' in page


def test_a_countdown_reward_preselects_the_countdown_model(
    alice_client: Client, team: Team, starter: Path
) -> None:
    model = starter.parent / "smollm2" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    reward = make_recipe(team, "countdown", COUNTDOWN)
    make_recipe(team)

    page = _page(alice_client, team, f"?recipe={reward.pk}")

    assert f'<option value="{starter}/model" selected>Countdown starter' in page


def test_settings_that_suit_the_starter_are_one_click_away(
    alice_client: Client, team: Team, starter: Path
) -> None:
    make_dataset(team)
    make_recipe(team)

    page = alice_client.get(f"/{team.slug}/runs/new")
    link = re.search(r'href="([^"]*preset=countdown[^"]*)"', unescape(page.text))

    differences = page.context["summary"].differences
    assert differences == ["Steps 60", "Learning rate 0.001", "Max new tokens 24"]
    assert link
    suited = alice_client.get(link[1])
    assert _fields(suited.text)["optim.learning_rate"] == "0.001"
    assert not suited.context["summary"].differences


@pytest.mark.parametrize(
    ("kind", "is_offered"), [("countdown", True), ("length", False)]
)
def test_its_settings_are_offered_for_its_own_reward_only(
    alice_client: Client, team: Team, starter: Path, kind: str, is_offered: bool
) -> None:
    rule = f'[[reward.recipe.rules]]\nname = "one"\nkind = "{kind}"\n'
    (starter / "run.toml").write_text(f"{RUN_TOML}\n{rule}")
    make_dataset(team)
    make_recipe(team, "countdown", COUNTDOWN)

    page = alice_client.get(f"/{team.slug}/runs/new")

    assert bool(page.context["summary"].differences) is is_offered


def test_a_launch_on_rows_that_the_model_cannot_read_is_confirmed(
    alice_client: Client, team: Team, starter: Path
) -> None:
    vocab = {
        word: place for place, word in enumerate(["<pad>", "=", "+", "10", *"0123"])
    }
    tokenizer = {"model": {"type": "WordLevel", "vocab": vocab}}
    (starter / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    dataset = make_dataset(team)
    form = {
        "name": "first",
        "model": f"{starter}/model",
        "dataset": dataset.pk,
        "recipe": make_recipe(team).pk,
    }
    new = f"/{team.slug}/runs/new"

    assert not alice_client.post(f"{new}/summary", form).context["summary"].warnings
    dataset.rows.update(prompt="What is 1+1?")
    summary = alice_client.post(f"{new}/summary", form).context["summary"]
    refused = alice_client.post(new, form)
    launched = alice_client.post(new, form | {"confirmed": "on"})

    (warning,) = summary.warnings
    assert "75%" in warning  # 9 of 12; 1, + and 1 it knows
    assert not summary.differences
    assert (refused.status_code, launched.status_code) == (422, 302)


def test_a_run_of_a_starter_shows_its_title(
    alice_client: Client, team: Team, starter: Path
) -> None:
    form = {
        "name": "first",
        "model": f"{starter}/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
    }

    alice_client.post(f"/{team.slug}/runs/new", form)

    run = Run.objects.get()
    assert run.model_label == "Countdown starter (0.6 M)"
    assert run.config["model"]["path"] == f"{starter}/model"


def test_a_chosen_preset_hides_recommended_settings(
    alice_client: Client, team: Team, starter: Path
) -> None:
    make_dataset(team)
    make_recipe(team)

    page = alice_client.get(f"/{team.slug}/runs/new?preset=grpo-zero&scaled=1")

    assert _fields(page.text)["model"] == f"{starter}/model"
    assert not page.context["summary"].differences


def test_an_existing_reward_of_a_starter_is_chosen(
    alice_client: Client, team: Team, starter: Path
) -> None:
    rule = '[[reward.recipe.rules]]\nname = "equation"\nkind = "countdown"\n'
    (starter / "run.toml").write_text(f"{RUN_TOML}\n{rule}")
    spec = Recipe.model_validate(COUNTDOWN).model_dump(mode="json")
    make_recipe(team, name="another")
    saved = make_recipe(team, name="Countdown", spec=spec)

    page = _page(alice_client, team, "?preset=countdown")

    assert f'<option value="{saved.pk}" selected>Countdown v1' in page
    assert "data-start-recipe" not in page
