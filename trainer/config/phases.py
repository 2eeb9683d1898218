"""A run in several phases, each going on from the last one's weights."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from trainer.config.objective import AdvantageConfig, LossConfig, ReferenceConfig
from trainer.config.part import Part, unit
from trainer.config.task import RewardConfig, RolloutConfig
from trainer.config.training import EvaluationConfig, OptimConfig

# The rest belongs to the run as a whole.
CHANGEABLE: dict[str, type[Part]] = {
    "rollout": RolloutConfig,
    "reward": RewardConfig,
    "advantage": AdvantageConfig,
    "loss": LossConfig,
    "reference": ReferenceConfig,
    "optim": OptimConfig,
    "evaluation": EvaluationConfig,
}


class Phase(Part):
    """Some steps of a run with settings of their own.

    >>> Phase(name="sft", num_steps=50, changes={"rollout": {"source": "dataset"}})
    """

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,39}$", description="What charts call the phase."
    )
    num_steps: int = Field(
        ge=1,
        le=10_000_000,
        title="Steps",
        description="Steps of the phase; its schedule runs over them.",
        json_schema_extra=unit("steps"),
    )
    changes: dict[str, dict[str, Any]] = Field(
        {}, description="Settings that differ from the run's, part by part."
    )

    @field_validator("changes")
    @classmethod
    def _parts_may_change(
        cls, changes: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        fixed = sorted(set(changes) - set(CHANGEABLE))
        if fixed:
            raise ValueError(
                f'A phase cannot change "{fixed[0]}". It can change '
                f"{', '.join(CHANGEABLE)}."
            )
        if "num_steps" in changes.get("optim", {}):
            raise ValueError(
                "A phase has its num_steps beside its name, not in changes.optim. "
                "Move it there."
            )
        return {
            part: {
                name: CHANGEABLE[part].value_of(name, value)
                for name, value in values.items()
            }
            for part, values in changes.items()
        }
