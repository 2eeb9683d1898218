"""Reading presets, and writing the configuration they lead to."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from trainer.config import (
    AdvantageConfig,
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    Part,
    ReferenceConfig,
    RolloutConfig,
)

FOLDER = Path(__file__).parent

# What a preset may set; data and reward belong to the task.
PARTS: dict[str, type[Part]] = {
    "model": ModelConfig,
    "rollout": RolloutConfig,
    "advantage": AdvantageConfig,
    "loss": LossConfig,
    "reference": ReferenceConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
    "checkpoint": CheckpointConfig,
    "logging": LoggingConfig,
    "distributed": DistributedConfig,
}


class Preset(BaseModel):
    """A published system's settings, and where they were read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    summary: str
    source: str
    notes: tuple[str, ...] = ()
    parts: dict[str, dict[str, Any]]

    def effective(self) -> dict[str, dict[str, Any]]:
        """Each part with its defaults filled in; the model's path is left open."""
        return {
            name: _filled(kind, self.parts.get(name, {}))
            for name, kind in PARTS.items()
        }


def _filled(kind: type[Part], values: dict[str, Any]) -> dict[str, Any]:
    if kind is not ModelConfig:
        return kind.model_validate(values).model_dump()
    # The path has no default: validate with one, and leave it out again.
    model = ModelConfig.model_validate({"path": "any", **values})
    return model.model_dump(exclude={"path"})


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str) -> Preset:
    """Read a preset; ValueError names those there are."""
    if name not in preset_names():
        raise ValueError(
            f"There is no preset {name!r}. There are: {', '.join(preset_names())}."
        )
    tree = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    about = tree.pop("preset")
    unknown = set(tree) - set(PARTS)
    assert not unknown, f"{name}.toml sets {unknown}, which a preset may not"
    return Preset(name=name, **about, parts=tree)


def to_toml(parts: dict[str, dict[str, Any]]) -> str:
    """Tables of plain values as TOML; an unset value becomes a comment."""
    tables = []
    for name, values in parts.items():
        lines = [
            f"# {key} is not set" if value is None else f"{key} = {json.dumps(value)}"
            for key, value in values.items()
        ]
        tables.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(tables) + "\n"
