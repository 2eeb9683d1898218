"""The launch form tells of completions that would go on behind the model's end."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.runs.launch.fit import find_limit, warn_of_lengths
from tests.dashboard.runs.launching import make_config, make_dataset, make_recipe
from trainer.config import RunConfig

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def dataset(shared_team) -> DatasetVersion:
    """Its longest prompt, 0+1=, has 4 characters."""
    return make_dataset(shared_team)


@pytest.fixture
def model(tmp_path) -> Path:
    """Made for texts of 512 tokens."""
    tree = {"model_type": "llama", "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    return tmp_path


def warn(model: object, dataset: DatasetVersion, **parts: Any) -> str:
    tree = make_config(model={"path": str(model)}, **parts)
    return warn_of_lengths(RunConfig.model_validate(tree), dataset)


def of(max_new_tokens: int, *, template: str = "none") -> dict[str, Any]:
    return {
        "data": {"rows": "rows.jsonl", "chat_template": template},
        "rollout": {"max_new_tokens": max_new_tokens},
    }


def test_an_exact_fit_has_no_warning(model, dataset):
    assert warn(model, dataset, **of(512 - 4)) == ""
    message = warn(model, dataset, **of(512 - 3))
    assert re.findall(r"\d+", message) == ["4", "509", "513", "512", "508"]


@pytest.mark.parametrize(
    ("file", "text"),
    [("chat_template.jinja", "{{ x }}"), ("tokenizer_config.json", None)],
)
def test_a_chat_template_takes_room(file, text, model, dataset):
    auto = of(500, template="auto")
    assert warn(model, dataset, **auto) == ""  # the model has none

    (model / file).write_text(text or json.dumps({"chat_template": "{{ x }}"}))

    assert "to 444" in warn(model, dataset, **auto)
    assert warn(model, dataset, **of(500)) == ""


def test_counted_tokens_take_precedence(model, dataset):
    TokenLengths.objects.create(
        version=dataset,
        model=str(model),
        num_wanted=5,
        result={"lengths": [[100, 4], [2, 1]], "every": 1},
    )

    assert "100 tokens" in warn(model, dataset, **of(500))


def test_no_prompt_is_longer_than_the_run_allows(model, dataset):
    parts = of(510)
    parts["data"]["max_prompt_tokens"] = 2

    assert warn(model, dataset, **parts) == ""


def test_the_phase_with_the_longest_completions_counts(model, dataset):
    changes = {"rollout": {"max_new_tokens": 600}}
    phases = [
        {"name": "short", "num_steps": 1},
        {"name": "long", "num_steps": 1, "changes": changes},
    ]

    message = warn(model, dataset, **of(9), optim={"num_steps": 2}, phases=phases)

    assert "up to 600" in message


def test_an_unknown_context_length_has_no_warning(tmp_path, dataset):
    assert warn("org/model", dataset, **of(9_999)) == ""
    assert warn(tmp_path, dataset, **of(9_999)) == ""
    (tmp_path / "config.json").write_text('{"model_type": "bloom"}')
    assert warn(tmp_path, dataset, **of(9_999)) == ""


def _stretched(limit: int, factor: float, original: int) -> dict[str, Any]:
    return {
        "max_position_embeddings": limit,
        "rope_parameters": {
            "factor": factor,
            "original_max_position_embeddings": original,
        },
    }


def test_the_context_length_is_read_from_the_model_config():
    endless = {"factor": float("inf")}
    older = {"factor": 4.0, "original_max_position_embeddings": 32_768}
    for tree, limit in (
        ({"n_positions": 1_024}, 1_024),
        ({"text_config": {"max_position_embeddings": 2_048}}, 2_048),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": 0}, None),
        ({"max_position_embeddings": 32_768, "rope_scaling": older}, 131_072),
        (_stretched(131_072, 32.0, 8_192), 262_144),
        ({"max_position_embeddings": 2_048, "rope_scaling": endless}, 2_048),
    ):
        assert find_limit(tree) == limit, tree


def test_the_form_requires_a_confirmation(alice_client, team, model, dataset):
    form = {
        "name": "long",
        "model_other": str(model),
        "dataset": dataset.pk,
        "recipe": make_recipe(team).pk,
        "rollout.max_new_tokens": "4096",
        "data.chat_template": "none",
    }

    summary = alice_client.post("/alpha/runs/new/summary", form)
    answer = alice_client.post("/alpha/runs/new", form)

    (warning,) = summary.context["summary"].warnings
    assert " 512" in warning
    assert warning in unescape(summary.text)
    assert answer.status_code == 422
    assert 'name="confirmed"' in answer.text
    assert not team.runs.exists()
