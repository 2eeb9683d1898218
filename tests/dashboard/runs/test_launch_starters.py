import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.launch import starts
from dashboard.runs.models import PublishedModel, Run
from dashboard.runs.queue.hosts import Device
from tests.dashboard.runs.launching import (
    COUNTDOWN,
    make_dataset,
    make_recipe,
    make_run,
)
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
def starter(settings, tmp_path) -> Path:
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
    alice_client, team, starter
):
    title = "Countdown starter (0.6 M)"
    option = f'<option value="{starter}/model" selected>{title}</option>'
    assert option in _page(alice_client, team)

    (starter / "starter.json").unlink()

    assert title not in _page(alice_client, team)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("chat_template.jinja", "{% if enable_thinking %}é{% endif %}", True),
        ("tokenizer_config.json", '{"chat_template": "{{ enable_thinking }}"}', True),
        ("tokenizer_config.json", '{"chat_template": "{{ enable_thinkings }}"}', False),
        ("tokenizer_config.json", "[", False),
    ],
)
def test_the_page_knows_whether_the_template_reads_thinking(
    alice_client, team, starter, name, text, expected
):
    (starter / "model" / name).write_text(text)

    page = alice_client.get("/alpha/runs/new")
    other = alice_client.get("/alpha/runs/new?model=Qwen/Qwen3-4B")

    assert page.context["start_values"]["reads_thinking"] is expected
    assert other.context["start_values"]["reads_thinking"] is False


def test_a_starter_without_a_reward_opens_the_form(
    alice_client, bob_client, team, starter
):
    make_dataset(team)
    ask = {"starter": "on"}
    assert 'name="starter"' not in alice_client.get("/alpha/runs/").text

    answer = alice_client.post("/alpha/runs/new", ask)

    assert answer.status_code == 422
    assert "recipe" in answer.context["form"].problems.by_field
    assert not Run.objects.exists()
    make_recipe(team)
    assert 'name="starter"' in alice_client.get("/alpha/runs/").text
    assert 'name="starter"' not in bob_client.get("/alpha/runs/").text


def test_a_pretrained_model_needs_no_note_of_its_making(alice_client, team, starter):
    model = starter.parent / "smollm2" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")

    page = _page(alice_client, team)

    assert f'<option value="{model}" selected>SmolLM2-135M-Instruct</option>' in page
    assert f'<option value="{starter}/model">Countdown starter' in page


def test_a_countdown_reward_preselects_the_countdown_model(alice_client, team, starter):
    model = starter.parent / "smollm2" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    reward = make_recipe(team, "countdown", COUNTDOWN)
    make_recipe(team)

    page = _page(alice_client, team, f"?recipe={reward.pk}")

    assert f'<option value="{starter}/model" selected>Countdown starter' in page


@pytest.fixture
def own(team, starter) -> tuple[DatasetVersion, RecipeVersion]:
    """What the installer makes for the starter, among others of the team."""
    rule = '[[reward.recipe.rules]]\nname = "equation"\nkind = "countdown"\n'
    (starter / "run.toml").write_text(f"{RUN_TOML}\n{rule}")
    make_dataset(team, "words")
    make_recipe(team)
    dataset = make_dataset(team, "Countdown")
    DatasetVersion.objects.filter(pk=dataset.pk).update(source={"kind": "starter"})
    return dataset, make_recipe(team, "Countdown", COUNTDOWN)


def test_to_open_the_form_and_launch_trains_the_starter(
    alice_client, team, starter, own
):
    (starter.parent / "smollm2" / "model").mkdir(parents=True)
    (starter.parent / "smollm2" / "model" / "config.json").write_text("{}")

    answer = alice_client.post(
        "/alpha/runs/new", _fields(_page(alice_client, team)) | {"confirmed": "on"}
    )

    assert answer.status_code == 302
    run = Run.objects.get()
    assert (run.dataset_version, run.recipe_version) == own
    assert run.config["model"]["path"] == f"{starter}/model"
    assert run.config["optim"]["learning_rate"] == 1e-3
    assert run.config["optim"]["num_steps"] == 60
    assert run.config["rollout"]["max_new_tokens"] == 24


def test_a_chosen_dataset_stays_and_a_model_that_reads_it_is_preselected(
    alice_client, team, starter, own
):
    other = team.datasets.get(name="words").versions.get()

    page = alice_client.get(f"/alpha/runs/new?dataset={other.pk}")

    fields = _fields(page.text)
    assert fields["dataset"] == str(other.pk)
    assert fields["recipe"] == ""
    assert fields["optim.learning_rate"] == "0.001"
    tokenizer = {"model": {"type": "WordLevel", "vocab": {"x": 0}}}
    (starter / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    page = alice_client.get(f"/alpha/runs/new?dataset={other.pk}")
    assert page.context["form"].model_path == ""


def _start(client: Client, **fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = client.post("/alpha/runs/new/start", fields).context[
        "start_values"
    ]
    return values


def test_another_model_brings_what_was_not_chosen(alice_client, starter, own):
    dataset, recipe = own
    sent = {"model": f"{starter}/model", "dataset": "", "recipe": ""}
    sent |= {"name": "typed", "optim.learning_rate": "5e-5"}

    free = _start(alice_client, **sent)
    kept = _start(alice_client, **sent | {"recipe": "7", "chosen": "model,recipe"})
    unknown = _start(alice_client, **sent | {"model": "", "model_other": "a/b"})

    assert (free["dataset"], free["recipe"]) == (str(dataset.pk), str(recipe.pk))
    assert (kept["dataset"], kept["recipe"]) == (str(dataset.pk), "7")
    assert free["texts"]["optim.learning_rate"] == "0.001"
    assert unknown["texts"]["optim.learning_rate"] == "1e-6"
    assert (unknown["dataset"], unknown["name"]) == ("", "")


def test_a_published_model_brings_its_runs_dataset_and_reward(alice_client, team):
    make_dataset(team, "words")
    make_recipe(team, "other")
    run = make_run(team, "a", dataset=make_dataset(team), recipe=make_recipe(team))
    model = PublishedModel.objects.create(
        team=team, run=run, name="m", run_name="a", step=1, sha256="0", num_bytes=1
    )

    values = _start(alice_client, model=f"{model.folder}/model")

    assert values["dataset"] == str(run.dataset_version_id)
    assert values["recipe"] == str(run.recipe_version_id)


def test_settings_are_recommended_by_size_device_and_answers(
    alice_client, team, tmp_path, monkeypatch
):
    sizes = {"hidden_size": 1_536, "num_hidden_layers": 28, "num_attention_heads": 12}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 8_960}
    sizes |= {"vocab_size": 151_936, "max_position_embeddings": 4_096}
    config = sizes | {"model_type": "qwen2", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    gpu = Device(name="GPU", memory_bytes=24 * 10**9, is_gpu=True)
    monkeypatch.setattr(starts, "known_devices", lambda: [gpu])
    dataset = make_dataset(team)
    dataset.rows.update(answer="7" * 6_000)

    found = _start(alice_client, model_other=str(tmp_path), dataset=dataset.pk)["texts"]

    assert found["optim.learning_rate"] == "1e-5"
    assert found["model.lora_rank"] == "32"
    # twice 2,000 tokens are wanted, in 4,096 of which the longest prompt has 68 at most
    assert found["rollout.max_new_tokens"] == str(4_096 - 68)


def test_defaults_and_presets_are_as_they_are_for_any_model(alice_client, starter, own):
    sent = {"model": f"{starter}/model"}

    defaults = _start(alice_client, **sent, preset="defaults")
    trl = _start(alice_client, **sent, preset="trl")

    assert defaults["texts"]["optim.learning_rate"] == "1e-6"
    assert trl["texts"]["rollout.max_new_tokens"] == "512"
    assert (trl["dataset"], trl["name"]) == ("", "trl")


def test_a_launch_on_rows_that_the_model_cannot_read_is_confirmed(
    alice_client, team, starter
):
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
    assert (refused.status_code, launched.status_code) == (422, 302)


def test_a_run_of_a_starter_shows_its_title(alice_client, team, starter):
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


def test_an_existing_reward_of_a_starter_is_chosen(alice_client, team, starter):
    rule = '[[reward.recipe.rules]]\nname = "equation"\nkind = "countdown"\n'
    (starter / "run.toml").write_text(f"{RUN_TOML}\n{rule}")
    spec = Recipe.model_validate(COUNTDOWN).model_dump(mode="json")
    make_recipe(team, name="another")
    saved = make_recipe(team, name="Countdown", spec=spec)

    page = _page(alice_client, team, "?preset=countdown")

    assert f'<option value="{saved.pk}" selected>Countdown v1' in page
    assert "data-start-recipe" not in page


def test_starters_are_offered_as_teachers(alice_client, team, starter):
    page = alice_client.get(f"/{team.slug}/runs/new").text

    offered = page[page.index('<datalist id="offered-models">') :]
    assert f'value="{starter}/model"' in offered[: offered.index("</datalist>")]


def test_the_name_of_a_model_is_no_model_id(alice_client, team, starter):
    form = {"model_other": "Countdown starter", "reference.model": "org/teacher"}

    answer = alice_client.post("/alpha/runs/new/summary", form)

    (message,) = answer.context["form"].problems.by_field["model_other"]
    assert f"{starter}/model" in message
