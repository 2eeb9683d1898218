import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from cohort.lines import part_text
from dashboard.accounts.models import AuditEntry, Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import (
    COUNTDOWN,
    make_dataset,
    make_recipe,
)
from tests.dashboard.runs.test_clone import _fields
from trainer.config import RunConfig


@pytest.fixture(scope="module")
def dataset(shared_team) -> DatasetVersion:
    return make_dataset(shared_team)


@pytest.fixture(scope="module")
def recipe(shared_team) -> RecipeVersion:
    return make_recipe(shared_team)


@pytest.fixture
def filled(dataset, recipe) -> dict[str, Any]:
    """The least that launches."""
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": dataset.pk,
        "recipe": recipe.pk,
        # as a browser sends switches that are on by default
        "model.tf32": "on",
        "logging.mismatch": "on",
    }


def _post(client: Client, team: Team, form: dict[str, Any]) -> tuple[int, str]:
    response = client.post(f"/{team.slug}/runs/new", form)
    return response.status_code, unescape(response.text)


def _beside(page: str, field: str) -> list[str]:
    """The sentences in the block that describes this field."""
    block = re.search(rf'<div id="about-{field}">(.*?)</div>', page, re.DOTALL)
    assert block, f"no such field: {field}"
    return re.findall(r'class="field-error">(.*?)</p>', block[1])


def test_a_filled_form_launches_and_leads_to_the_run(alice_client, team, filled):
    response = alice_client.post(f"/{team.slug}/runs/new", filled)

    run = Run.objects.get()
    assert response.headers["Location"] == f"/{team.slug}/runs/{run.pk}/"
    assert (run.name, run.model_label, run.state) == (
        "brave-otter",
        "org/model",
        "queued",
    )
    assert AuditEntry.objects.filter(verb="run.launched", object_id=run.pk).exists()


def test_unchanged_settings_are_the_engines_defaults(
    alice_client, team, filled, recipe
):
    _post(alice_client, team, filled)

    expected = RunConfig.model_validate(
        {
            "model": {"path": "org/model"},
            "data": {"rows": "rows.jsonl"},
            "reward": {"recipe": recipe.spec},
        }
    )
    assert Run.objects.get().config == expected.model_dump(mode="json")


def test_settings_reach_the_config_in_their_types(alice_client, team, filled):
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


WRONG = [  # what is typed together, and what the complaint about it names
    {
        "rollout.group_size": ("0", "at least 1; got “0”"),
        "rollout.temperature": ("hot", "“hot”"),
        "optim.beta1": ("1", "below 1; got “1”"),
        "optim.schedule": ("zigzag", "'linear' or 'cosine'"),
        "seed": ("4294967296", "at most 4,294,967,295"),
    },
    {
        "rollout.group_size": ("2.5", "“2.5”"),
        "rollout.temperature": ("nan", "“nan”"),
        "data.system_prompt": ("/a\x00b", "NUL"),
        "model_other": ("/a\x00b", "NUL"),
    },
    {
        "rollout.group_size": ("", "default is 8"),
        "rollout.temperature": ("0", "above 0; got “0”"),
    },
    {"rollout.group_size": ("9" * 5000, "“999")},
    {
        "rollout.stop": ("</answer>", "</answer>"),
        "data.chat_template_kwargs": ("{enable_thinking: false}", "enable_thinking"),
    },
    {
        "rollout.stop": ('["\\u0000"]', "NUL"),
        "data.chat_template_kwargs": ('{"a": NaN}', "NaN"),
    },
    {
        "rollout.stop": ('[""]', "character"),
        "data.chat_template_kwargs": ('{"a": "\\ud800"}', "surrogate"),
    },
]


def test_an_invalid_value_is_shown_at_its_field(alice_client, team, filled):
    for wrong in WRONG:
        typed = {field: text for field, (text, _) in wrong.items()}
        status, page = _post(alice_client, team, filled | typed)

        assert status == 422
        assert "brave-otter" in page
        for field, (_, named) in wrong.items():
            setting = f"field-{field.replace('.', '-')}"
            control = "model-other" if field == "model_other" else setting
            (message,) = _beside(page, control)
            assert named in message, field
    assert not Run.objects.exists()


def test_conflicting_settings_are_shown_above_and_at_their_fields(
    alice_client, team, filled
):
    clash = {"loss.kl_coef": "0.1", "reference.kind": "none"}

    answer = alice_client.post(f"/{team.slug}/runs/new", filled | clash)

    page = unescape(answer.text)
    (together,) = answer.context["form"].problems.general
    assert answer.status_code == 422
    assert f"<li>{together}</li>" in page
    assert _beside(page, "field-loss-kl_coef") == [together]
    assert _beside(page, "field-reference-kind") == [together]
    assert _beside(page, "field-optim-num_steps") == []


def test_a_part_with_an_error_is_open(alice_client, team, filled):
    _, page = _post(alice_client, team, filled | {"optim.beta1": "2"})

    assert re.search(r"<details[^>]* open>\s*<summary>[^\n]*Optimizer", page)
    assert not re.search(r"<details[^>]* open>\s*<summary>[^\n]*Loss", page)


def test_missing_choices_have_errors(alice_client, team, filled):
    missing = ("name", "model_other", "dataset", "recipe")

    status, page = _post(alice_client, team, filled | dict.fromkeys(missing, ""))

    assert status == 422
    for control in missing:
        assert len(_beside(page, control.replace("_", "-"))) == 1, control


def test_the_estimate_names_the_choices_that_it_needs(alice_client, team, filled):
    for empty, missing in (
        (("model_other",), "a model"),
        (("dataset", "recipe"), "a dataset and a reward"),
        ((), ""),
    ):
        answer = alice_client.post(
            f"/{team.slug}/runs/new/summary", filled | dict.fromkeys(empty, "")
        )

        assert answer.context["form"].missing == missing
        assert not missing or f"Choose {missing} " in answer.text


def test_an_invalid_model_is_refused(alice_client, team, filled, settings):
    settings.DATABASE_IS_EMBEDDED = True

    for model in ("/no/such/folder", "../etc", "a b c", "x" * 2000 + "//"):
        answer = alice_client.post(
            f"/{team.slug}/runs/new/summary", filled | {"model_other": model}
        )

        problems = answer.context["form"].problems
        (message,) = problems.by_field["model_other"]
        assert problems.links == [("field-model_other", message)]
        assert model in message
        assert ("config.json" in message) == (model == "/no/such/folder")


def test_distillation_alone_needs_a_teacher(alice_client, team, filled):
    filled |= {"advantage.weight": "0", "loss.kl_coef": "1"}
    cases = {"": 1, "no model": 1, "org/teacher": 0}

    for teacher, num_errors in cases.items():
        status, page = _post(alice_client, team, filled | {"reference.model": teacher})

        assert status == (422 if num_errors else 302), teacher
        if num_errors:
            assert len(_beside(page, "field-reference-model")) == num_errors
    assert Run.objects.get().config["reference"]["model"] == "org/teacher"


def test_a_context_needs_a_column_of_the_dataset(alice_client, team, filled):
    context = {"reference.context": "column", "loss.kl_coef": "1"}
    cases = {"no_column": 422, "answer": 302}

    for column, expected in cases.items():
        named = {"reference.context_column": column}
        status, page = _post(alice_client, team, filled | context | named)

        assert status == expected, column
        if status == 422:
            (message,) = _beside(page, "field-reference-context_column")
            assert column in message


def test_more_prompts_than_rows_are_refused(alice_client, team, filled):
    _, held = _post(alice_client, team, filled | {"data.num_eval_rows": "200"})
    _, wide = _post(alice_client, team, filled | {"rollout.prompts_per_step": "137"})

    assert "200 rows" in _beside(held, "field-data-num_eval_rows")[0]
    assert "136 " in _beside(wide, "field-rollout-prompts_per_step")[0]


def test_a_dataset_with_images_is_refused(alice_client, team, filled, dataset):
    image = part_text({"type": "image"})
    dataset.rows.filter(position=3).update(prompt=f"What is in {image}?")

    status, page = _post(alice_client, team, filled)

    assert status == 422
    assert "has images" in page
    assert Run.objects.count() == 0


def test_another_teams_dataset_cannot_be_trained_on(charlie_client, team, filled):
    status, page = _post(charlie_client, Team.objects.get(slug="other"), filled)

    assert status == 422
    assert _beside(page, "dataset")
    assert _beside(page, "recipe")
    assert charlie_client.get(f"/{team.slug}/runs/new").status_code == 404


def test_a_new_form_shows_defaults_and_no_errors(alice_client, team, filled):
    page = alice_client.get(f"/{team.slug}/runs/new").text

    fields = _fields(page)
    assert "field-error" not in page
    assert fields["optim.learning_rate"] == "1e-6"
    assert re.fullmatch(r"[a-z]+-[a-z]+", fields["name"])


def test_the_address_preselects_dataset_and_reward(alice_client, team, filled):
    other = make_dataset(team, "words")
    make_recipe(team, "another")

    page = alice_client.get(
        f"/{team.slug}/runs/new?dataset={other.pk}&recipe={filled['recipe']}"
    ).text

    fields = _fields(page)
    assert fields["dataset"] == str(other.pk)
    assert fields["recipe"] == str(filled["recipe"])


def test_the_summary_follows_from_the_settings(alice_client, team, filled):
    form = filled | {"optim.num_steps": "50", "optim.updates_per_batch": "2"}

    answer = alice_client.post(f"/{team.slug}/runs/new/summary", form)

    amounts = {one.title: one.value for one in answer.context["summary"].amounts}
    assert amounts == {
        "Completions per step": "128",  # 16 × 8
        "Tokens sampled per step": "up to 32.8k",
        "Total tokens sampled": "up to 1.64M",
        "Time per step": "unknown",
        "Updates": "100",  # 50 × 2
        "Total completions": "6.4k",
        "Epochs": "5.88",  # 50 × 16 / (200 - 64)
        "Evaluations": "4",  # at 0, 20, 40 and 50
        "Checkpoints": "3",
    }
    assert all(f">{value}</span>" in answer.text for value in amounts.values())
    assert not Run.objects.exists()


def test_the_note_of_many_epochs_repeats_the_number_of_the_summary(
    alice_client, team, filled
):
    form = filled | {"optim.num_steps": "1085"}  # 1085 × 16 / (200 - 64) = 127.6

    summary = alice_client.post(f"/{team.slug}/runs/new/summary", form).context[
        "summary"
    ]

    assert {one.title: one.value for one in summary.amounts}["Epochs"] == "128"
    assert [hint for hint in summary.hints if "128 times" in hint]


def test_the_summary_lists_errors(alice_client, team, filled):
    form = filled | {"rollout.group_size": "1"}

    answer = alice_client.post(f"/{team.slug}/runs/new/summary", form)

    (message,) = answer.context["form"].problems.messages
    assert f"<li>{message}</li>" in unescape(answer.text)
    assert not answer.context["summary"].amounts


def test_rows_that_a_rule_cannot_score_are_shown_before_launch(
    alice_client, team, filled
):
    countdown = make_recipe(team, "countdown", COUNTDOWN)
    form = filled | {"recipe": countdown.pk}

    refused = alice_client.post(f"/{team.slug}/runs/new", form)
    confirmed, _ = _post(alice_client, team, form | {"confirmed": "on"})

    (warning,) = refused.context["summary"].warnings
    assert refused.status_code == 422
    assert "Rule equation" in warning
    assert 'name="confirmed"' in refused.text
    assert confirmed == 302
    assert Run.objects.count() == 1


def test_rows_with_the_columns_a_rule_needs_raise_no_warning(
    alice_client, team, filled
):
    countdown = make_recipe(team, "countdown", COUNTDOWN)
    rows = make_dataset(team, "countdown", numbers=[3, 5, 7], target=15)

    status, _ = _post(
        alice_client, team, filled | {"recipe": countdown.pk, "dataset": rows.pk}
    )

    assert status == 302


def test_a_name_is_one_line_of_text(alice_client, team, filled):
    for name in ("two\nlines", "a\x00b", "tab\there"):
        status, page = _post(alice_client, team, {**filled, "name": name})

        assert status == 422
        assert repr(name) in _beside(page, "name")[0]
    assert not Run.objects.exists()
