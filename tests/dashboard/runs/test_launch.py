from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import (
    COUNTDOWN,
    make_dataset,
    make_recipe,
)
from trainer.config import RunConfig


@pytest.fixture
def dataset(team: Team) -> DatasetVersion:
    return make_dataset(team)


@pytest.fixture
def recipe(team: Team) -> RecipeVersion:
    return make_recipe(team)


@pytest.fixture
def filled(dataset: DatasetVersion, recipe: RecipeVersion) -> dict[str, Any]:
    """The least that launches."""
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": dataset.pk,
        "recipe": recipe.pk,
        "model.tf32": "on",  # as a browser sends a switch that is on by default
    }


def _post(client: Client, team: Team, form: dict[str, Any]) -> tuple[int, str]:
    response = client.post(f"/{team.slug}/runs/new", form)
    return response.status_code, unescape(response.text)


def _beside(page: str, field: str) -> list[str]:
    """The sentences in the block that describes this field."""
    block = re.search(rf'<div id="about-{field}">(.*?)</div>', page, re.DOTALL)
    assert block, f"no such field: {field}"
    return re.findall(r'class="field-error">(.*?)</p>', block[1])


def test_a_filled_form_launches_and_leads_to_the_run(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    response = alice_client.post(f"/{team.slug}/runs/new", filled)

    run = Run.objects.get()
    assert response.headers["Location"] == f"/{team.slug}/runs/{run.pk}/"
    assert (run.name, run.model_label, run.state) == (
        "brave-otter",
        "org/model",
        "queued",
    )
    assert AuditEntry.objects.filter(verb="run.launched", object_id=run.pk).exists()


def test_what_was_not_changed_is_the_engines_default(
    alice_client: Client, team: Team, filled: dict[str, Any], recipe: RecipeVersion
) -> None:
    _post(alice_client, team, filled)

    expected = RunConfig.model_validate(
        {
            "model": {"path": "org/model"},
            "data": {"rows": "rows.jsonl"},
            "reward": {"recipe": recipe.spec},
        }
    )
    assert Run.objects.get().config == expected.model_dump(mode="json")


def test_settings_reach_the_config_in_their_types(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    changed = {
        "optim.num_steps": " 250 ",
        "optim.learning_rate": "3e-5",
        "advantage.ddof": "0",
        "loss.dual_clip": "3",
        "loss.importance_correction": "",
        "model.gradient_checkpointing": "on",
        "data.system_prompt": "Think.\r\nThen answer.",
        "optim.max_grad_norm": "",
    }

    status, _ = _post(alice_client, team, filled | changed)

    config = RunConfig.model_validate(Run.objects.get().config)
    assert status == 302
    assert config.optim.num_steps == 250
    assert config.optim.learning_rate == 3e-5
    assert config.advantage.ddof == 0
    assert config.loss.dual_clip == 3
    assert config.loss.importance_correction is None
    assert config.model.gradient_checkpointing is True
    assert config.data.system_prompt == "Think.\nThen answer."
    assert config.optim.max_grad_norm is None


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("rollout.group_size", "0", "Group size must be at least 1; got “0”."),
        ("rollout.group_size", "2.5", "Group size must be a whole number; got “2.5”."),
        ("rollout.group_size", "", "Group size is empty. Its default is 8."),
        (
            "rollout.temperature",
            "hot",
            "Temperature must be a number, such as 0.5 or 1e-6; got “hot”.",
        ),
        (
            "rollout.temperature",
            "nan",
            "Temperature must be a number, such as 0.5 or 1e-6; got “nan”.",
        ),
        ("rollout.temperature", "0", "Temperature must be above 0; got “0”."),
        ("optim.beta1", "1", "Beta1 must be below 1; got “1”."),
        ("seed", "4294967296", "Seed must be at most 4,294,967,295; got “4294967296”."),
        (
            "optim.schedule",
            "zigzag",
            "Schedule must be one of 'constant', 'linear' or 'cosine'; got “zigzag”.",
        ),
        ("rollout.group_size", "9" * 5000, None),
    ],
)
def test_a_wrong_value_is_told_beside_its_field_and_kept(
    alice_client: Client,
    team: Team,
    filled: dict[str, Any],
    field: str,
    text: str,
    sentence: str | None,
) -> None:
    status, page = _post(alice_client, team, filled | {field: text})

    told = _beside(page, "field-" + field.replace(".", "-"))
    assert status == 422
    assert told == [sentence] if sentence else told
    assert not Run.objects.exists()
    assert "brave-otter" in page


def test_settings_that_do_not_go_together_are_told_above_and_beside(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    clash = {"loss.kl_coef": "0.1", "reference.kind": "none"}

    status, page = _post(alice_client, team, filled | clash)

    assert status == 422
    assert "These settings do not go together" in page
    for field in ("field-loss-kl_coef", "field-reference-kind"):
        assert "needs a reference model" in _beside(page, field)[0]
    assert _beside(page, "field-optim-num_steps") == []


def test_a_part_with_a_problem_is_unfolded(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    _, page = _post(alice_client, team, filled | {"optim.beta1": "2"})

    assert re.search(r"<details[^>]* open>\s*<summary>[^\n]*Optimizer", page)
    assert not re.search(r"<details[^>]* open>\s*<summary>[^\n]*Loss", page)


@pytest.mark.parametrize(
    ("missing", "field", "sentence"),
    [
        ("name", "name", "The run needs a name."),
        ("model_other", "model-other", "Choose a model"),
        ("dataset", "dataset", "Choose a dataset"),
        ("recipe", "recipe", "Choose a reward"),
    ],
)
def test_what_is_missing_is_asked_for(
    alice_client: Client,
    team: Team,
    filled: dict[str, Any],
    missing: str,
    field: str,
    sentence: str,
) -> None:
    status, page = _post(alice_client, team, filled | {missing: ""})

    assert status == 422
    assert len(_beside(page, field)) == 1
    assert sentence in _beside(page, field)[0]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("/no/such/folder", "a config.json is missing there"),
        ("../etc", "neither a folder"),
        ("a b c", "neither a folder"),
        ("x" * 2000 + "/" + "/", "neither a folder"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_name(
    alice_client: Client,
    team: Team,
    filled: dict[str, Any],
    settings: Any,
    model: str,
    sentence: str,
) -> None:
    settings.DATABASE_IS_EMBEDDED = True

    status, page = _post(alice_client, team, filled | {"model_other": model})

    assert status == 422
    assert sentence in _beside(page, "model-other")[0]
    assert model in _beside(page, "model-other")[0]


def test_more_prompts_than_rows_are_refused(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    _, held = _post(alice_client, team, filled | {"data.num_eval_rows": "200"})
    _, wide = _post(alice_client, team, filled | {"rollout.prompts_per_step": "137"})

    assert "none of the 200 rows" in _beside(held, "field-data-num_eval_rows")[0]
    assert "136 rows" in _beside(wide, "field-rollout-prompts_per_step")[0]


def test_another_teams_dataset_cannot_be_trained_on(
    charlie_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    status, page = _post(charlie_client, Team.objects.get(slug="other"), filled)

    assert status == 422
    assert "Choose a dataset" in _beside(page, "dataset")[0]
    assert "Choose a reward" in _beside(page, "recipe")[0]
    assert charlie_client.get(f"/{team.slug}/runs/new").status_code == 404


def test_viewers_are_told_why_they_cannot_launch(
    bob_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    status, page = _post(bob_client, team, filled)

    assert status == 403
    assert "Your role in Alpha is viewer" in page
    assert not Run.objects.exists()


def test_a_fresh_form_shows_defaults_and_no_complaint(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    page = alice_client.get(f"/{team.slug}/runs/new").text

    assert "field-error" not in page
    assert 'name="optim.learning_rate" value="1e-6"' in page
    assert re.search(r'name="name" value="[a-z]+-[a-z]+"', page)


def test_the_address_preselects_dataset_and_reward(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    other = make_dataset(team, "words")
    make_recipe(team, "another")

    page = alice_client.get(
        f"/{team.slug}/runs/new?dataset={other.pk}&recipe={filled['recipe']}"
    ).text

    assert re.search(rf'<option value="{other.pk}" selected>words v1', page)
    assert f'<option value="{filled["recipe"]}" selected>' in page


def test_the_summary_follows_from_the_settings(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    form = filled | {"optim.num_steps": "50", "optim.updates_per_batch": "2"}

    page = unescape(alice_client.post(f"/{team.slug}/runs/new/summary", form).text)

    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Completions per step 128 16 prompts × 8" in text
    assert "up to 32.8k" in text
    assert "Updates 100 50 steps × 2" in text
    assert "Passes over the prompts 5.882" in text  # 50 × 16 / (200 - 64)
    assert "Evaluations 4 64 completions each" in text  # at 0, 20, 40 and 50
    assert "Checkpoints 3" in text
    assert not Run.objects.exists()


def test_the_summary_names_what_is_wrong(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    form = filled | {"rollout.group_size": "1"}

    page = alice_client.post(f"/{team.slug}/runs/new/summary", form).text

    assert "A group of 1 completion has nothing to compare with" in page


def test_rows_that_a_rule_cannot_score_are_told_before_launch(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    countdown = make_recipe(team, "countdown", COUNTDOWN)
    form = filled | {"recipe": countdown.pk}

    status, page = _post(alice_client, team, form)
    confirmed, _ = _post(alice_client, team, form | {"confirmed": "on"})

    assert status == 422
    assert "Rule equation cannot score these rows" in page
    assert "Launch anyway" in page
    assert confirmed == 302
    assert Run.objects.count() == 1


def test_rows_with_the_columns_a_rule_needs_raise_no_warning(
    alice_client: Client, team: Team, filled: dict[str, Any]
) -> None:
    countdown = make_recipe(team, "countdown", COUNTDOWN)
    rows = make_dataset(team, "countdown", numbers=[3, 5, 7], target=15)

    status, _ = _post(
        alice_client, team, filled | {"recipe": countdown.pk, "dataset": rows.pk}
    )

    assert status == 302


@pytest.mark.parametrize("name", ["two\nlines", "a\x00b", "tab\there"])
def test_a_name_is_one_line_of_text(
    alice_client: Client, team: Team, filled: dict[str, Any], name: str
) -> None:
    status, page = _post(alice_client, team, {**filled, "name": name})

    assert status == 422
    assert "control character" in page
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "field", ["model_other", "data.system_prompt", "data.completion_prefix"]
)
def test_a_nul_character_is_answered(
    alice_client: Client, team: Team, filled: dict[str, Any], field: str
) -> None:
    status, page = _post(alice_client, team, {**filled, field: "/a\x00b"})

    assert status == 422
    assert "holds a NUL character" in page
    assert not Run.objects.exists()
