"""Reading presets, and the configuration they lead to."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.config import (
    AdvantageConfig,
    CheckpointConfig,
    DataConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    Part,
    ReferenceConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
)
from trainer.rewards.published import load_published
from trainer.rewards.spec import Recipe

FOLDER = Path(__file__).parent

PARTS: dict[str, type[Part]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "rollout": RolloutConfig,
    "reward": RewardConfig,
    "advantage": AdvantageConfig,
    "loss": LossConfig,
    "reference": ReferenceConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "logging": LoggingConfig,
    "distributed": DistributedConfig,
}
# What every run has to be told, and no preset can know.
OPEN = {"model": "path", "data": "rows"}
# The task: a scaled form has another, so it takes nothing over from the real one's.
_TASK = ("data", "reward")

Tree = dict[str, dict[str, Any]]


class Preset(BaseModel):
    """A published system's settings, and where they were read.

    `parts` is the real thing; `scaled` is what differs in a form of it that the
    starter's model learns on a laptop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    summary: str
    source: str
    notes: tuple[str, ...] = ()
    seed: int = 0
    parts: Tree
    scaled: Tree

    def tree(self, *, scaled: bool = False) -> Tree:
        """What the preset sets, part by part."""
        if not scaled:
            return self.parts
        merged = {name: dict(values) for name, values in self.parts.items()}
        for name, values in self.scaled.items():
            merged[name] = values if name in _TASK else merged.get(name, {}) | values
        return merged

    def effective(self, *, scaled: bool = False) -> Tree:
        """Each part with its defaults filled in; model.path and data.rows are left."""
        tree = self.tree(scaled=scaled)
        return {name: _filled(name, tree.get(name, {})) for name in PARTS}

    def config(
        self,
        *,
        model: str,
        rows: str,
        scaled: bool = False,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> RunConfig:
        """The run of a model on rows; ValueError where `changes` contradict it."""
        tree = {part: dict(v) for part, v in self.tree(scaled=scaled).items()}
        tree.setdefault("model", {})["path"] = model
        tree.setdefault("data", {})["rows"] = rows
        for part, values in (changes or {}).items():
            tree[part] = tree.get(part, {}) | dict(values)
        return RunConfig.model_validate({"seed": self.seed, **tree})

    @property
    def recipe(self) -> Recipe:
        """The reward of the real thing, graded strictly."""
        return Recipe.model_validate(self.parts["reward"]["recipe"])


def _filled(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """A part's values with its defaults; one that is left open is not among them."""
    left_open = OPEN.get(name)
    placeholder = {left_open: "any"} if left_open else {}
    part = PARTS[name].model_validate({**placeholder, **values})
    return part.model_dump(exclude=set(placeholder))


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read a preset; ValueError names those there are."""
    if name not in preset_names():
        raise ValueError(
            f'There is no preset "{name}". Choose one of: {", ".join(preset_names())}.'
        )
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    about, scaled = tree.pop("preset"), tree.pop("scaled")
    seed = tree.pop("seed", 0)
    for parts in (tree, scaled):
        unknown = set(parts) - set(PARTS)
        assert not unknown, f"{name}.toml sets {unknown}, which a preset may not"
        _find_recipe(parts)
    return Preset(name=name, **about, seed=seed, parts=tree, scaled=scaled)


def _find_recipe(parts: Tree) -> None:
    """Put a published recipe in the place of its name."""
    reward = parts["reward"]
    published = reward.pop("published", None)
    if published is not None:
        reward["recipe"] = load_published(published).model_dump()
