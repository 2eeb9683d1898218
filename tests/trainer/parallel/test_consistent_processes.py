"""Processes that were given different things are refused before they train."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.tiny import config_tree
from trainer.config import RunConfig
from trainer.curriculum import Beliefs, read_pass_rates
from trainer.data import PromptRenderer, read_rows
from trainer.model.policy import load_policy
from trainer.parallel.world import ALONE, World
from trainer.run.setup import check_consistent_content, check_consistent_setup


@dataclass(frozen=True, kw_only=True)
class Recorder(World):
    """One process of two; what the other one says is what it was given."""

    message: dict[str, str]
    received: Mapping[str, str]
    size: int = 2

    def gather(self, value: Any) -> list[Any]:
        self.message.update(value)
        return [
            value,
            {name: self.received.get(name, own) for name, own in value.items()},
        ]


def says(model: Path, rows: Path, **change: Any) -> dict[str, str]:
    world = Recorder(message={}, received={})
    check(world, model, rows, **change)
    return world.message


def check(
    world: World,
    model: Path,
    rows: Path,
    *,
    seed: int = 0,
    answer: str = "8",
    moved: float = 0.0,
    num_scored: int = 8,
) -> None:
    config = RunConfig.model_validate(config_tree(model, rows) | {"seed": seed})
    policy = load_policy(config.model)
    with torch.no_grad():
        next(iter(policy.model.parameters()))[0, 0] += moved
    other = rows.parent / "rows-of-this-host.jsonl"
    other.write_text(rows.read_text().replace('"answer": "8"', f'"answer": "{answer}"'))
    renderer = PromptRenderer(policy.tokenizer, config.data)
    prompts = [renderer.render(row) for row in read_rows(other)]
    check_consistent_setup(world, config)
    beliefs = Beliefs.about(prompt.index for prompt in prompts)
    rates = rows.parent / "rates-of-this-host.jsonl"
    rates.write_text(f'{{"row": 1, "num_right": 2, "num_scored": {num_scored}}}')
    read_pass_rates(rates, beliefs)
    check_consistent_content(
        world, policy=policy, prompts=prompts, config=config, beliefs=beliefs
    )


def test_processes_with_the_same_before_them_pass(model_folder, rows_path):
    theirs = says(model_folder, rows_path)

    check(Recorder(message={}, received=theirs), model_folder, rows_path)
    check(ALONE, model_folder, rows_path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "run configuration"),
        ({"answer": "9"}, "rows"),
        ({"moved": 0.1}, "model"),
        ({"num_scored": 9}, "pass rates"),
    ],
)
def test_another_one_on_another_host_is_refused(change, name, model_folder, rows_path):
    theirs = says(model_folder, rows_path, **change)

    with pytest.raises(ValueError, match=f"Process 1 .* {name} "):
        check(Recorder(message={}, received=theirs), model_folder, rows_path)


def test_models_in_another_place_are_the_same_configuration(model_folder, rows_path):
    digests = set()
    for host in ("/a", "/b"):
        judge = {"name": "judge", "kind": "reward_model", "params": {"path": host}}
        tree = config_tree(model_folder, rows_path, model={"path": f"{host}/model"})
        tree["reward"] = {"recipe": {"rules": [judge]}}
        world = Recorder(message={}, received={})

        check_consistent_setup(world, RunConfig.model_validate(tree))
        digests.add(world.message["run configuration"])

    assert len(digests) == 1
