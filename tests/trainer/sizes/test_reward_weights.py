"""What reward models are said to take, against classifiers that were loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.trainer.llama_sizes import LLAMA, config_of
from tests.trainer.rewards.test_reward_model import settings, write_classifier
from tests.trainer.tiny import write_model
from trainer.commands.memory_table import table
from trainer.config import RunConfig
from trainer.model.classifier import Classifier, _load
from trainer.sizes.memory import estimate
from trainer.sizes.model_sizes import weigh_reward_models, weights_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("one") / "model")


def rule(path: object, name: str = "liked", **params: Any) -> dict[str, Any]:
    given = {"path": str(path), **params}
    return {"name": name, "kind": "reward_model", "params": given}


def config(*rules: dict[str, Any], **parts: Any) -> RunConfig:
    return config_of(reward={"recipe": {"rules": list(rules)}}, **parts)


def allocated(model: torch.nn.Module) -> int:
    """Bytes of the storages that hold the model's parameters, each once."""
    storages = {
        parameter.untyped_storage().data_ptr(): parameter.untyped_storage()
        for parameter in model.parameters()
    }
    return sum(storage.nbytes() for storage in storages.values())


def test_it_is_what_a_loaded_classifier_has_allocated(folder):
    loaded = Classifier(settings(folder))

    found = weigh_reward_models(config(rule(folder)), on_gpu=False)

    assert found.beside_policy == allocated(loaded._model)
    assert (found.elsewhere, found.unknown) == (0, ())


@pytest.mark.parametrize(
    ("dtype", "bytes_each"), [(torch.float32, 4), (torch.bfloat16, 2)]
)
def test_it_counts_the_format_that_it_is_loaded_in(folder, dtype, bytes_each):
    model = _load(settings(folder), dtype=dtype)

    assert weights_in(folder, bytes_each=bytes_each) == allocated(model)


def test_weights_in_several_files_and_of_another_kind(tmp_path):
    write_model(tmp_path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    bert = BertForSequenceClassification(
        BertConfig(vocab_size=50, intermediate_size=64, num_labels=1, **sizes)
    )
    (tmp_path / "model.safetensors").unlink()

    bert.save_pretrained(tmp_path, max_shard_size="20KB")

    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert weights_in(tmp_path, bytes_each=4) == allocated(bert)


def test_a_model_read_alike_twice_is_counted_once(folder, tmp_path):
    other = write_classifier(tmp_path / "other", num_labels=2)
    once = weigh_reward_models(config(rule(folder)), on_gpu=False).beside_policy

    same = config(
        rule(folder, score_as="raw"),
        rule(folder, "again", score_as="raw", low=-1),
    )
    two = config(rule(folder), rule(other, "other", label="0"))

    assert weigh_reward_models(same, on_gpu=False).beside_policy == once
    assert weigh_reward_models(two, on_gpu=False).beside_policy > 2 * once


@pytest.mark.parametrize(
    ("device", "policy", "on_gpu", "beside", "elsewhere"),
    [
        ("auto", "auto", False, 4, 0),
        ("auto", "auto", True, 2, 0),
        ("cpu", "auto", True, 0, 4),
        ("auto", "cpu", True, 0, 2),
        ("cpu", "cpu", True, 4, 0),
        ("cuda", "cuda", False, 2, 0),
    ],
)
def test_weights_lie_on_the_device_that_the_model_runs_on(
    folder, device, policy, on_gpu, beside, elsewhere
):
    run = config(
        rule(folder, device=device), model={"path": "nowhere", "device": policy}
    )

    found = weigh_reward_models(run, on_gpu=on_gpu)

    numbers = weights_in(folder, bytes_each=4) // 4
    assert found.beside_policy == beside * numbers
    assert found.elsewhere == elsewhere * numbers


def test_they_are_part_of_the_estimate_at_any_time(folder):
    plain = estimate(config_of(), LLAMA)

    found = estimate(config(rule(folder)), LLAMA)

    assert found.reward_models == weights_in(folder, bytes_each=4) > 0
    assert found.total == plain.total + found.reward_models


def test_a_later_phases_model_is_counted_in_all_phases(folder):
    tree = config_of(optim={"num_steps": 2, "micro_batch_tokens": 100}).model_dump()
    recipe = {"rules": [rule(folder)]}
    tree["phases"] = [
        {"name": "first", "num_steps": 1},
        {"name": "then", "num_steps": 1, "changes": {"reward": {"recipe": recipe}}},
    ]

    found = estimate(RunConfig.model_validate(tree), LLAMA)

    assert (found.first_step, found.reward_models > 0) == (1, True)


HEADERS = [b"", b"\xff" * 9, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{"]
HEADERS += [b"\x12" + b"\0" * 7 + b'{"a": {"shape": 1}}']


@pytest.mark.parametrize("content", [None, *HEADERS])
def test_unreadable_models_are_named_and_not_counted(tmp_path, content):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    run = config(rule(tmp_path), rule("org/judge", "other"))

    found = weigh_reward_models(run, on_gpu=False)

    assert found.unknown == (str(tmp_path), "org/judge")
    assert found.beside_policy == 0


def test_an_index_names_no_file_outside_its_folder(tmp_path, folder):
    index = {"weight_map": {"a": f"../{folder.name}/model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(ValueError, match="cannot be read"):
        weights_in(tmp_path, bytes_each=4)


def test_the_table_lists_models_elsewhere_and_unknown_ones(folder):
    run = config(rule(folder, device="cpu"), rule("org/judge", "other"))

    lines = table(run, estimate(run, LLAMA, on_gpu=True))

    assert "rewards, other device" in lines
    assert "reward model org/judge" in lines
